"use strict";
// Print opens what is folded; a button copies the command where the browser allows it.
window.addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
const copy = document.getElementById("copy");
if (copy && navigator.clipboard) {
  copy.hidden = false;
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById("command").textContent);
    copy.textContent = "Copied";
  });
}
