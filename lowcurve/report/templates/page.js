"use strict";
// Sortable tables, the paper's numbers as a toggle, values on hover, sliders. The page reads without any of it.
const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));

for (const table of all("table.numbers")) {
  all("thead button", table).forEach((button, index) => button.addEventListener("click", () => {
    const head = button.parentElement, up = head.getAttribute("aria-sort") !== "ascending";
    all("thead th", table).forEach((th) => th.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => {
      const cell = row.cells[index];
      if (!("value" in cell.dataset)) return cell.textContent.trim();
      return cell.dataset.value === "" ? null : Number(cell.dataset.value);
    };
    const order = (a, b) => {
      const x = key(a), y = key(b);
      if (x === null || y === null) return (x === null) - (y === null); // what is missing stays below
      return (typeof x === "number" ? x - y : x.localeCompare(y)) * (up ? 1 : -1);
    };
    const body = table.tBodies[0];
    body.append(...Array.from(body.rows).sort(order));
  }));
}

const showPaper = document.getElementById("show-paper"); // absent where the paper has no numbers
const applyPaper = () => document.body.classList.toggle("no-paper", !showPaper.checked);
showPaper?.addEventListener("change", applyPaper);
if (showPaper) applyPaper();

const markMore = () => all(".scroll").forEach((box) => // there is more to the right
  box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 8));
all(".scroll").forEach((box) => box.addEventListener("scroll", markMore, { passive: true }));
addEventListener("resize", markMore);
markMore();

const theme = document.getElementById("theme");
theme.addEventListener("change", () => {
  if (theme.value) document.documentElement.dataset.theme = theme.value;
  else delete document.documentElement.dataset.theme;
});

const tip = document.getElementById("tip");
const hideTip = () => { tip.hidden = true; all("circle.at").forEach((c) => c.classList.remove("at")); };
function showTip(circle) {
  hideTip();
  circle.classList.add("at");
  tip.textContent = circle.dataset.tip;
  tip.hidden = false;
  const at = circle.getBoundingClientRect(), box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(at.left + 10, innerWidth - box.width - 4))}px`;
  tip.style.top = `${at.top - box.height - 8 < 4 ? at.bottom + 8 : at.top - box.height - 8}px`;
}
addEventListener("resize", hideTip);
addEventListener("scroll", () => all("circle.at").slice(0, 1).forEach(showTip), { passive: true });
for (const chart of all("svg.chart")) {
  chart.addEventListener("pointermove", (event) => {
    let nearest = null, least = 24; // pixels
    for (const circle of all("circle[data-tip]", chart)) {
      const box = circle.getBoundingClientRect();
      const gap = Math.hypot(box.x + box.width / 2 - event.clientX, box.y + box.height / 2 - event.clientY);
      if (gap < least) { nearest = circle; least = gap; }
    }
    if (nearest) showTip(nearest); else hideTip();
  });
  chart.addEventListener("pointerleave", hideTip);
  for (const series of all(".series", chart)) { // keyboard: tab to a line, arrows along it
    const points = all("circle[data-tip]", series);
    let at = 0;
    series.setAttribute("tabindex", "0");
    series.addEventListener("focus", () => { if (series.matches(":focus-visible")) showTip(points[at]); });
    series.addEventListener("blur", hideTip);
    series.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") hideTip();
      if (!step) return;
      event.preventDefault();
      at = Math.max(0, Math.min(points.length - 1, at + step));
      showTip(points[at]);
    });
  }
}

for (const figure of all("figure.outlines")) {
  const slider = figure.querySelector("input"), labels = JSON.parse(slider.dataset.labels);
  slider.addEventListener("input", () => {
    all("g.net", figure).forEach((net, index) => net.toggleAttribute("hidden", index !== Number(slider.value)));
    figure.querySelector("output").textContent = labels[slider.value];
    slider.setAttribute("aria-valuetext", labels[slider.value]);
  });
}

const openTarget = () => { // a link to a run opens it
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
};
addEventListener("hashchange", openTarget);
openTarget();
let opened = [];
addEventListener("beforeprint", () => { opened = all("section:not(#runs) details:not([open])"); opened.forEach((d) => { d.open = true; }); });
addEventListener("afterprint", () => opened.forEach((d) => { d.open = false; }));
