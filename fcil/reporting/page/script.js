"use strict";
(() => {
  const root = document.documentElement;
  const all = (query, within = document) => [...within.querySelectorAll(query)];
  const figures = new Map(all("script[data-for]").map((one) => [one.dataset.for, JSON.parse(one.textContent)]));
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // The theme: what the system prefers, until the reader chooses one.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("fcil-theme"); } catch { return null; } };
  const keep = (theme) => { try { localStorage.setItem("fcil-theme", theme); } catch { /* a page without storage */ } };
  const wear = (theme) => {
    root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = theme === "dark" ? "Light page" : "Dark page";
  };
  wear(stored() || (dark.matches ? "dark" : "light"));

  const inked = (value) => JSON.parse(JSON.stringify(value).replaceAll('"$ink"', JSON.stringify(colour("--ink"))));
  const themed = (layout) => {
    const narrow = innerWidth < 600;
    const base = { automargin: true, gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line"), fixedrange: true };
    const found = inked(layout);
    for (const side of ["xaxis", "yaxis"]) found[side] = { ...base, ...(found[side] || {}) };
    if (narrow) found.legend = { orientation: "h", y: 1.02, yanchor: "bottom", maxheight: 1000, ...(found.legend || {}), font: { size: 11 } };
    return {
      dragmode: false, hovermode: "closest", margin: { l: 10, r: 10, t: 12, b: 10 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--ink"), size: narrow ? 11 : 13, family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--line"), activecolor: colour("--soft") },
      hoverlabel: { bgcolor: colour("--card"), font: { color: colour("--ink") } },
      ...found,
    };
  };
  const options = { responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtons: [["toImage"]] };
  const shown = (place) => !place.closest("[hidden]");

  // On a phone the legend stands above its figure, which becomes higher by as many lines.
  const roomy = (place, figure) => {
    place.dataset.height = place.dataset.height || place.clientHeight;
    const names = figure.data.filter((trace) => trace.name && trace.showlegend !== false).map((trace) => trace.name);
    const columns = Math.max(1, Math.floor((innerWidth - 90) / (45 + 6.5 * Math.max(0, ...names.map((name) => name.length)))));
    const lines = innerWidth < 600 && names.length > 1 ? Math.ceil(names.length / columns) : 0;
    place.style.height = `${Number(place.dataset.height) + 17 * Math.max(0, lines - 1)}px`;
  };

  const draw = async (again = false) => {
    root.dataset.ready = "";
    if (again) all(".plot").forEach((place) => delete place.dataset.drawn);  // those of hidden runs, too
    for (const place of all(".plot")) {
      if (!shown(place) || place.dataset.drawn) continue;
      const figure = figures.get(place.id);
      roomy(place, figure);
      await Plotly.react(place, inked(figure.data), themed(figure.layout), options);
      place.dataset.drawn = "yes";
      await new Promise((next) => setTimeout(next));
    }
    all("input.find").filter((one) => one.value && shown(one)).forEach(find);
    all("select.client").filter((one) => one.value && shown(one)).forEach(single);
    root.dataset.ready = "yes";
  };

  // A class that is searched for: its rows, its bar, and its row and column among the confusions.
  const find = (input) => {
    const wanted = input.value.trim().toLowerCase();
    const prefix = input.dataset.in;
    const rows = all(`#${prefix}-class-table tbody tr`);
    const hits = rows.filter((row) => wanted && row.dataset.key.includes(wanted));
    rows.forEach((row) => { row.hidden = Boolean(wanted) && !hits.includes(row); row.classList.toggle("hit", hits.includes(row)); });
    const bars = document.getElementById(`${prefix}-bars`);
    const matches = (name) => String(name).toLowerCase().includes(wanted) || hits.some((row) => row.cells[0].textContent === name);
    if (bars && bars.data) Plotly.restyle(bars, { "marker.opacity": [bars.data[0].x.map((name) => (!wanted || matches(name) ? 1 : 0.15))] });
    const heat = document.getElementById(`${prefix}-confusion`);
    let count = hits.length;
    if (heat && heat.data) {
      const names = heat.data[0].x;
      const places = wanted ? names.flatMap((name, place) => (matches(name) ? [place] : [])) : [];
      if (!rows.length) count = places.length;
      const line = { color: "#d55e00", width: 2 };
      const end = names.length - 0.5;
      Plotly.relayout(heat, { shapes: places.slice(0, 20).flatMap((place) => [
        { type: "rect", x0: -0.5, x1: end, y0: place - 0.5, y1: place + 0.5, line },
        { type: "rect", y0: -0.5, y1: end, x0: place - 0.5, x1: place + 0.5, line },
      ]) });
    }
    input.closest("p").querySelector(".found").textContent = wanted ? `${count} found` : "";
  };

  // One client among the curves of all.
  const single = (select) => {
    const place = document.getElementById(select.dataset.for);
    const figure = figures.get(place.id);
    const client = select.value;
    const data = inked(figure.data).map((trace) => {
      if (trace.mode === "lines") {
        const chosen = !client || trace.meta === client;
        return { ...trace, opacity: client ? (chosen ? 1 : 0.08) : trace.opacity, line: { ...trace.line, ...(client && chosen ? { color: colour("--ink"), width: 3 } : {}) } };
      }
      return { ...trace, marker: { ...trace.marker, opacity: trace.customdata.map((one) => (!client || one === client ? 1 : 0.06)) } };
    });
    Plotly.react(place, data, themed(figure.layout), options);
  };

  // One of several matrices in the place of another.
  const framed = (select) => {
    const figure = figures.get(select.dataset.for);
    Object.assign(figure.data[0], figure.frames[Number(select.value)]);
    return figure;
  };

  // What the reader has chosen outlasts a page that is loaded again, as that of a run under way is. Fields are known by
  // their run, which may stand in another place then; the newest of several matrices stays the newest.
  const memory = `fcil-view ${location.pathname}`;
  const fields = () => {
    const names = all("#run option").map((one) => one.textContent);
    return all("#run, input.find, select.client, select.frame").map((field) => {
      const key = field.id || field.dataset.in || field.dataset.for;
      return [key.replace(/^run(\d+)/, (_, number) => names[number] || ""), field];
    });
  };
  const chosen = (field) => {
    if (field.id === "run") return field.selectedOptions[0].textContent;
    return field.matches(".frame") && field.selectedIndex === field.options.length - 1 ? "" : field.value;
  };
  const remember = () => {
    const view = { fields: Object.fromEntries(fields().map(([key, field]) => [key, chosen(field)])), open: all("details").map((one) => one.open) };
    try { sessionStorage.setItem(memory, JSON.stringify(view)); } catch { /* a page without storage */ }
  };
  const recall = () => {
    let view = null;
    try { view = JSON.parse(sessionStorage.getItem(memory)); } catch { /* a page without storage */ }
    if (!view) return;
    for (const [key, field] of fields()) {
      const value = view.fields[key];
      if (!value) continue;
      if (field.matches("input")) field.value = value;
      for (const one of field.options || []) if ((field.id === "run" ? one.textContent : one.value) === value) one.selected = true;
      if (field.matches(".frame")) framed(field);
    }
    if (all("details").length === view.open.length) all("details").forEach((one, place) => { one.open = view.open[place]; });
  };

  const listen = () => {
    const run = document.getElementById("run");
    const show = () => {
      all(".run").forEach((part, number) => { part.hidden = String(number) !== run.value; });
      all("nav .links").forEach((links, number) => { links.hidden = String(number) !== run.value; });
    };
    if (run) { show(); run.addEventListener("change", () => { show(); draw(); }); }
    document.getElementById("theme").addEventListener("click", () => {
      const theme = root.dataset.theme === "dark" ? "light" : "dark";
      keep(theme); wear(theme); draw(true);
    });
    dark.addEventListener("change", (event) => { if (!stored()) { wear(event.matches ? "dark" : "light"); draw(true); } });
    all("input.find").forEach((input) => input.addEventListener("input", () => find(input)));
    all("select.client").forEach((select) => select.addEventListener("change", () => single(select)));
    all("select.frame").forEach((select) => select.addEventListener("change", () => {
      const figure = framed(select);
      Plotly.react(select.dataset.for, inked(figure.data), themed(figure.layout), options).then(() => all("input.find").filter(shown).forEach(find));
    }));
    all("button.copy").forEach((button) => button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.for);
      try { await navigator.clipboard.writeText(text.textContent); button.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(text); button.textContent = "Selected"; }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    }));
  };

  // plotly lies compressed in the page, at two fifths of its size.
  const unpack = async () => {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (one) => one.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const code = document.createElement("script");
    code.textContent = await new Response(stream).text();
    document.head.append(code);
  };

  addEventListener("pagehide", remember);
  addEventListener("DOMContentLoaded", async () => {
    recall();
    listen();
    wear(root.dataset.theme);
    try { await unpack(); await draw(); } catch (error) {
      all(".plot").forEach((place) => { place.textContent = "This browser cannot draw the figures; one of 2023 or later can."; place.style.height = "auto"; });
      throw error;
    }
  });
})();
