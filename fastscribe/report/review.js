"use strict";
const passages = [...document.querySelectorAll("article.passage")];
const save = document.getElementById("save");
const count = document.getElementById("count");
let unsaved = false;

function checked() {
  return passages.filter((one) => one.querySelector("input").checked);
}

function show() {
  const number = checked().length;
  save.disabled = number === 0;
  count.textContent = `${number} checked`;
}

function rows() {
  return checked().map((one) => {
    const row = JSON.parse(one.dataset.row);
    const text = one.querySelector("textarea").value.split(/\s+/).filter(Boolean).join(" ");
    return JSON.stringify({ ...row, text: text });
  });
}

for (const one of passages) {
  const box = one.querySelector("input");
  box.addEventListener("change", () => { unsaved = true; show(); });
  one.querySelector("textarea").addEventListener("input", () => { box.checked = true; unsaved = true; show(); });
}

save.addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([rows().join("\n") + "\n"], { type: "application/jsonl" }));
  link.download = "corrections.jsonl";
  link.click();
  unsaved = false;
});

window.addEventListener("beforeunload", (event) => { if (unsaved) event.preventDefault(); });
show();
