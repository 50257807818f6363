"""The pictures of pocket clips: anti-aliased shapes drawn from scenes by signed distances.

Must not know sound, words or models. Everything is vectorised over clips and frames and runs on the scenes' device.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from pocket.scenes import FRAMES, HEIGHT, WIDTH, Scenes

PALETTE = (  # red, green, blue, yellow, purple, white in sRGB [0, 1]; order of scenes.COLOURS
    (0.90, 0.12, 0.12),
    (0.10, 0.75, 0.22),
    (0.15, 0.32, 0.95),
    (0.95, 0.85, 0.10),
    (0.65, 0.18, 0.85),
    (0.95, 0.95, 0.95),
)
SQUARE_HALF = 0.886  # half side of the square with the area of the unit circle, sqrt(pi)/2
TRIANGLE_IN = 0.78  # radius of the triangle's inner circle: area 3 sqrt(3) 0.78^2 = 3.16, the circle's is 3.14
SQRT3 = 3.0**0.5


def distances(
    shape: Tensor, dx: Float[Tensor, "..."], dy: Float[Tensor, "..."], radius: Float[Tensor, "..."]
) -> Float[Tensor, "..."]:
    """Signed distance in pixels (negative inside) to the shape's outline; all arguments broadcast together."""
    circle = torch.sqrt(dx * dx + dy * dy + 1e-6) - radius
    square = torch.maximum(dx.abs(), dy.abs()) - SQUARE_HALF * radius
    below = dy - 0.5 * TRIANGLE_IN * radius  # centred by height, not by area
    triangle = torch.maximum(below, 0.5 * SQRT3 * dx.abs() - 0.5 * below) - TRIANGLE_IN * radius
    diamond = (dx.abs() + dy.abs()) * 0.5**0.5 - SQUARE_HALF * radius
    first = torch.where(shape == 0, circle, square)
    second = torch.where(shape == 2, triangle, diamond)
    return torch.where(shape < 2, first, second)


def outlines(scenes: Scenes, index: int) -> Float[Tensor, "b f h w"]:
    """Signed distance of every pixel centre to shape `index` (0 moving, 1 still)."""
    device = scenes.x_px.device
    x = torch.arange(WIDTH, device=device).float()[None, None, None, :] + 0.5
    y = torch.arange(HEIGHT, device=device).float()[None, None, :, None] + 0.5
    centre_x, centre_y = scenes.x_px[:, index, :, None, None], scenes.y_px[:, index, :, None, None]
    radius = scenes.radius_px[:, index, :, None, None]
    return distances(scenes.shape[:, index, None, None, None], x - centre_x, y - centre_y, radius)


def backgrounds(scenes: Scenes) -> Float[Tensor, "b 3 1 h w"]:
    """Plain or linear-gradient backgrounds in [0, 1]."""
    device = scenes.x_px.device
    across = torch.linspace(0, 1, WIDTH, device=device)[None, None, None, None, :]
    down = torch.linspace(0, 1, HEIGHT, device=device)[None, None, None, :, None]
    share = torch.where((scenes.gradient_axis == 0)[:, None, None, None, None], across, down)
    ends = scenes.background_rgb[:, :, :, None, None, None]
    return ends[:, 0] + (ends[:, 1] - ends[:, 0]) * share


def render_video(scenes: Scenes) -> tuple[Float[Tensor, "b 3 f h w"], Float[Tensor, "b 1 f h w"]]:
    """Pictures in [-1, 1] and a soft map (0..1) of where a shape or its outline is, for loss weights."""
    palette = torch.tensor(PALETTE, device=scenes.x_px.device)
    picture = backgrounds(scenes).expand(-1, -1, FRAMES, -1, -1)
    near = torch.zeros_like(picture[:, :1])
    for index in (1, 0):
        distance = outlines(scenes, index)[:, None]
        seen = scenes.visible[:, index, None, :, None, None]
        cover = (0.5 - distance).clamp(0, 1) * seen
        rgb = palette[scenes.colour[:, index]][:, :, None, None, None]
        picture = picture + (rgb - picture) * cover
        near = torch.maximum(near, (1.0 - distance / 8.0).clamp(0, 1) * seen)
    return picture * 2 - 1, near
