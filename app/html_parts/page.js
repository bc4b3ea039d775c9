"use strict";
// Draws the charts of the version that is shown, in the theme that the browser asks for. No request ever leaves.
(() => {
  const darkTheme = matchMedia("(prefers-color-scheme: dark)");
  const sections = [...document.querySelectorAll("section.version, section.failures")];
  let found = null; // { dark, figures }
  let printing = false;

  async function unpacked(id) {
    const packed = atob(document.getElementById(id).textContent);
    const bytes = Uint8Array.from(packed, (mark) => mark.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  // A copy of a figure, its light colours replaced where the page is dark. Only values of colour properties are looked at.
  function inTheme(value, name) {
    if (Array.isArray(value)) return value.map((one) => inTheme(one, name));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, inTheme(one, key)]));
    }
    const dark = darkTheme.matches && !printing && /color$/i.test(name);
    return dark && Object.hasOwn(found.dark, value) ? found.dark[value] : value;
  }

  function draw() {
    for (const section of sections.filter((one) => !one.hidden)) {
      for (const place of section.querySelectorAll(".plot")) {
        const { data, layout } = inTheme(found.figures[place.dataset.figure], "");
        const width = Math.max(place.clientWidth, Number(place.dataset.least));
        place.tabIndex = width > place.clientWidth ? 0 : -1; // scrolls sideways on a narrow screen
        Plotly.react(place, data, { ...layout, width }, { displayModeBar: false });
      }
    }
  }

  function show(version) {
    for (const section of sections) {
      if (section.dataset.version !== undefined) section.hidden = section.dataset.version !== version;
    }
    if (found) draw();
  }

  function listen() {
    for (const choice of document.querySelectorAll("input[name=version]")) {
      choice.addEventListener("change", () => show(choice.value));
      if (choice.checked) show(choice.value); // a reload keeps the choice
    }
    const tables = document.getElementById("tables");
    const follow = () => document.body.classList.toggle("with-tables", tables.checked);
    tables?.addEventListener("change", follow);
    if (tables) follow();
    document.getElementById("unpack").addEventListener("click", unpack);
  }

  function unpack(event) {
    const packed = atob(document.getElementById("flashscope-snapshot").textContent.trim());
    const bytes = Uint8Array.from(packed, (mark) => mark.charCodeAt(0));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([bytes], { type: "application/gzip" }));
    link.download = event.currentTarget.dataset.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }

  function redrawWhenNeeded() {
    darkTheme.addEventListener("change", draw);
    let width = innerWidth;
    let pending = 0;
    addEventListener("resize", () => {
      if (innerWidth === width) return;
      width = innerWidth;
      cancelAnimationFrame(pending);
      pending = requestAnimationFrame(draw);
    });
    const print = (starts) => () => {
      printing = starts;
      document.documentElement.classList.toggle("printing", starts);
      draw();
    };
    addEventListener("beforeprint", print(true));
    addEventListener("afterprint", print(false));
  }

  async function start() {
    listen();
    if (!document.querySelector(".plot")) return;
    try {
      const [library, figures] = await Promise.all([unpacked("plotly"), unpacked("figures"), document.fonts.ready]);
      const script = document.createElement("script");
      script.textContent = library; // the policy names its hash
      document.head.append(script);
      found = JSON.parse(figures);
      draw();
      redrawWhenNeeded();
    } catch (error) {
      document.body.classList.add("with-tables", "without-charts");
      document.getElementById("said").textContent =
        `This browser could not draw the charts (${error.message}); the tables have the same numbers.`;
    }
  }

  start();
})();
