// Asks for the page again every few seconds and puts the new content in the place of the old: scrolling, selected text,
// opened details and the element that has the focus stay. The progress of running runs comes every second as Server-Sent
// Events. Times are in UTC, or in the browser's time zone if the reader has chosen so. Without this script the page
// reloads itself and shows UTC.
(() => {
  "use strict";
  const byId = (id) => document.getElementById(id);
  const seconds = Number(document.body.dataset.refresh);

  // Times. Each <time> keeps its text and title in UTC as data.
  const absolute = /(\d{4}-\d\d-\d\d )?\d\d:\d\d(:\d\d)?( UTC)?/;
  const two = (n) => String(n).padStart(2, "0");
  const offset = (d) => {
    const minutes = Math.abs(d.getTimezoneOffset());
    return ` UTC${d.getTimezoneOffset() > 0 ? "-" : "+"}${two(Math.floor(minutes / 60))}:${two(minutes % 60)}`;
  };
  const local = (utc, d) => utc.replace(absolute, (all, date, secs, zone) =>
    (date ? `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ` : "") +
    `${two(d.getHours())}:${two(d.getMinutes())}${secs ? `:${two(d.getSeconds())}` : ""}${zone ? offset(d) : ""}`);
  const stored = () => {
    try { return localStorage.getItem("zone") === "local"; } catch { return false; }
  };
  let isLocal = stored();

  // The steps of a chart are of the last day, and have no date.
  const steps = /(\d\d):(\d\d) to (\d\d):(\d\d)/g;
  const localStep = (all, hour, minute, toHour, toMinute) => {
    const now = new Date(byId("asof").querySelector("time").dateTime);
    const from = new Date(now);
    from.setUTCHours(hour, minute, 0, 0);
    if (from > now) from.setUTCDate(from.getUTCDate() - 1);
    const minutes = ((toHour - hour) * 60 + (toMinute - minute) + 1440) % 1440;
    const ends = [from, new Date(from.getTime() + minutes * 60000)];
    return ends.map((d) => `${two(d.getHours())}:${two(d.getMinutes())}`).join(" to ");
  };

  // A field for a time keeps what the reader has typed. A local time without a zone is sent in UTC.
  const translateField = (field) => {
    const hint = field.ownerDocument.getElementById(field.getAttribute("aria-describedby"));
    hint.dataset.utc ??= hint.textContent;
    hint.textContent = isLocal ? hint.dataset.utc.replace("UTC", "local time") : hint.dataset.utc;
    field.dataset.utc ??= field.value;
    const d = new Date(field.dataset.utc);
    if (isNaN(d) || (field.value !== field.dataset.utc && field.value !== field.dataset.local)) return;
    field.dataset.local = local(`${field.dataset.utc.slice(0, 10)} ${field.dataset.utc.slice(11, 16)}`, d);
    field.value = isLocal ? field.dataset.local : field.dataset.utc;
  };
  document.addEventListener("submit", (event) => {
    for (const field of event.target.querySelectorAll("input[data-time]")) {
      const typed = /^(\d{4}-\d\d-\d\d)(?: (\d\d:\d\d))?$/.exec(field.value.trim());
      if (isLocal && typed) field.value = new Date(`${typed[1]}T${typed[2] ?? "00:00"}`).toISOString();
    }
  });
  const translate = (root) => {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const d = new Date(time.dateTime);
      time.dataset.utc ??= time.textContent;
      time.dataset.title ??= time.title;
      time.textContent = isLocal ? local(time.dataset.utc, d) : time.dataset.utc;
      if (time.dataset.title) time.title = isLocal ? local(time.dataset.title, d) : time.dataset.title;
    }
    for (const bars of root.querySelectorAll(".bars title, dl.values dd, p.values")) {
      bars.dataset.utc ??= bars.textContent;
      bars.textContent = isLocal ? bars.dataset.utc.replace(steps, localStep) : bars.dataset.utc;
    }
    for (const name of root.querySelectorAll(".zone")) name.textContent = isLocal ? `local time,${offset(new Date())}` : "UTC";
    root.querySelectorAll("input[data-time]").forEach(translateField);
  };
  const zone = byId("zone");
  const showZone = () => {
    zone.textContent = isLocal ? "show UTC" : "show local time";
    translate(document);
  };
  zone.hidden = false;
  zone.addEventListener("click", () => {
    isLocal = !isLocal;
    try { localStorage.setItem("zone", isLocal ? "local" : "utc"); } catch { /* the choice lasts as long as the page */ }
    showZone();
  });
  showZone();
  if (!seconds) return;

  // The whole content.
  const typing = () => Boolean(document.activeElement?.closest("input, select, textarea"));
  const ticked = () => document.querySelector("#content input:checked") !== null;
  const busy = () => document.hidden || typing() || ticked() || !window.getSelection().isCollapsed;
  const keyOf = (details, i) => details.id || `details ${i}`;
  const eachDetails = (root, what) => root.querySelectorAll("details").forEach((details, i) => what(details, keyOf(details, i)));

  const replace = (fresh) => {
    const content = byId("content");
    const focused = document.activeElement;
    const inside = focused && content.contains(focused);
    const href = inside && focused.getAttribute("href");
    const open = new Map();
    let summary = null;
    eachDetails(content, (details, key) => {
      open.set(key, details.open);
      if (inside && focused.parentElement === details) summary = key;
    });
    const next = fresh.getElementById("content");
    eachDetails(next, (details, key) => { if (open.has(key)) details.open = open.get(key); });
    translate(fresh);
    content.replaceChildren(...next.childNodes);
    byId("asof").replaceChildren(...fresh.getElementById("asof").childNodes);
    document.title = fresh.title;
    if (href) content.querySelector(`a[href="${CSS.escape(href)}"]`)?.focus({ preventScroll: true });
    eachDetails(content, (details, key) => {
      if (key === summary) details.querySelector("summary").focus({ preventScroll: true });
    });
    listen();
  };

  const refresh = async () => {
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(15000) });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!page.getElementById("content")) throw new Error("not the page");
      byId("lost").hidden = true;
      if (!busy()) replace(page);
    } catch {
      byId("lost-at").textContent = byId("asof").querySelector("time").textContent;
      byId("lost").hidden = false;
      document.title = "no answer · caretaker";
    }
  };

  // The progress of running runs. A browser opens few connections to a server, so only a page that is seen listens.
  const maxSources = 3;
  const sources = new Map();
  const close = (url) => {
    sources.get(url)?.close();
    sources.delete(url);
  };
  const listen = () => {
    const wanted = document.hidden ? [] : [...document.querySelectorAll("[data-events]")].slice(0, maxSources);
    const urls = wanted.map((element) => element.dataset.events);
    for (const url of sources.keys()) if (!urls.includes(url)) close(url);
    for (const url of urls) {
      if (sources.has(url)) continue;
      const source = new EventSource(url);
      sources.set(url, source);
      source.addEventListener("message", (event) => {
        const element = document.querySelector(`[data-events="${CSS.escape(url)}"]`);
        if (!element || !window.getSelection().isCollapsed) return;
        const part = new DOMParser().parseFromString(event.data, "text/html");
        translate(part);
        element.replaceChildren(...part.body.childNodes);
      });
      // A refused stream is asked for again with the next refresh.
      source.addEventListener("error", () => { if (source.readyState === EventSource.CLOSED) sources.delete(url); });
      source.addEventListener("end", () => {
        source.close();
        if (!busy()) refresh();
      });
    }
  };
  document.addEventListener("visibilitychange", listen);
  window.addEventListener("pagehide", () => { for (const url of [...sources.keys()]) close(url); });
  window.addEventListener("pageshow", listen);
  listen();

  const loop = async () => {
    if (!busy()) await refresh();
    setTimeout(loop, seconds * 1000);
  };
  setTimeout(loop, seconds * 1000);
})();
