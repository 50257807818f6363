"use strict";
// Shows the records that fit every filter.
const form = document.getElementById("filters");
if (form) {
  const rows = [...document.querySelectorAll("#records > li")];
  const text = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const apply = () => {
    const words = form.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const fits =
        ["status", "device", "geometry"].every((name) => !form[name].value || row.dataset[name] === form[name].value) &&
        (form.superseded.checked || row.dataset.status !== "superseded") &&
        words.every((word) => text.get(row).includes(word));
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    }
    document.getElementById("shown").textContent = shown;
    document.getElementById("none").hidden = shown > 0;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  apply();
}
