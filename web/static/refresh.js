// Asks for the page again every few seconds and puts the new content in the place of the old: scrolling, selected text,
// and the element that has the focus stay. Without this script the page reloads itself.
(() => {
  "use strict";
  const seconds = Number(document.body.dataset.refresh);
  if (!seconds) return;
  const byId = (id) => document.getElementById(id);

  const busy = () => document.hidden || !window.getSelection().isCollapsed;

  const replace = (fresh) => {
    const focused = document.activeElement;
    const href = focused && byId("content").contains(focused) && focused.getAttribute("href");
    byId("content").replaceChildren(...fresh.getElementById("content").childNodes);
    byId("asof").replaceChildren(...fresh.getElementById("asof").childNodes);
    document.title = fresh.title;
    if (href) {
      const again = byId("content").querySelector(`a[href="${CSS.escape(href)}"]`);
      if (again) again.focus({ preventScroll: true });
    }
  };

  const refresh = async () => {
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(15000) });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!page.getElementById("content")) throw new Error("not the page");
      byId("lost").hidden = true;
      if (!busy()) replace(page);
    } catch {
      byId("lost-at").textContent = byId("asof").querySelector("time").textContent + " UTC";
      byId("lost").hidden = false;
      document.title = "no answer · caretaker";
    }
  };

  const loop = async () => {
    if (!busy()) await refresh();
    setTimeout(loop, seconds * 1000);
  };
  setTimeout(loop, seconds * 1000);
})();
