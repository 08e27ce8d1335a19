# SPDX-License-Identifier: Apache-2.0
"""One HTML file that needs no other: it contains its style, script and pictures, and may not use the network.

Light and dark follow the reader's settings; on paper all steps are shown; sliders and buttons work with the keyboard,
and a page that is opened as `page.html#site-0=2` starts with step 2 of that site. Without scripts all steps are there,
one below the other.
"""

from __future__ import annotations

from reshard.pictures import colours
from reshard.pictures.markup import Markup, element, joined

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

_STYLE = """
:root{color-scheme:light dark;--bg:#f5f6f8;--good:#1a7f4b;--bad:#b3391f;--mark:#2f6fb0}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font-size:15px;line-height:1.5}
main{max-width:1180px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:26px;line-height:1.25;margin:8px 0 4px;font-weight:650}
h2{font-size:19px;margin:0 0 4px;font-weight:650;overflow-wrap:anywhere}
h3{font-size:14px;margin:26px 0 8px;font-weight:650}
p{margin:6px 0;max-width:80ch;overflow-wrap:anywhere}
a{color:var(--mark)}
code,pre{font-family:ui-monospace,'SFMono-Regular',
'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:12.5px}
code{overflow-wrap:anywhere}
pre{overflow:auto;background:var(--bg);border:1px solid var(--line);border-radius:6px;
padding:10px 12px;margin:8px 0;line-height:1.45;max-height:420px}
.soft{color:var(--soft)}
.card{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:18px 20px;margin:18px 0;
break-inside:avoid-page}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(210px,1fr));gap:12px;margin:16px 0}
.tiles .card{margin:0;padding:14px 16px}
.figure{font-size:23px;font-weight:650;line-height:1.2;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.badge{display:inline-block;border-radius:20px;padding:1px 10px;
font-size:12.5px;font-weight:600;border:1px solid currentColor;white-space:nowrap}
.good{color:var(--good)}.bad{color:var(--bad)}
.wide{overflow-x:auto;margin:8px 0}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;padding:4px 0}
th,td{text-align:left;padding:5px 14px 5px 0;vertical-align:top;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:600;white-space:nowrap}
td code{overflow-wrap:normal}
.n{text-align:right;white-space:nowrap}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 16px;margin:8px 0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
figure{margin:0}
svg{display:block}
.fit{max-width:100%;height:auto}
.steps{border:1px solid var(--line);border-radius:8px;padding:12px 14px;margin:8px 0}
.bar{display:none;gap:10px;align-items:center;flex-wrap:wrap;margin:0 0 10px}
.scripted .bar{display:flex}
.bar input{flex:1 1 160px;min-width:120px;accent-color:var(--mark)}
.bar button{font:inherit;font-size:13px;padding:3px 12px;border-radius:6px;
border:1px solid var(--line);background:var(--paper);color:var(--ink);cursor:pointer}
.bar output{font-size:13px;min-width:7em;font-variant-numeric:tabular-nums}
:focus-visible{outline:3px solid var(--mark);outline-offset:2px}
.scripted .state{display:none}.scripted .state.now{display:block}
.state{margin:0 0 14px}
.state figcaption{font-weight:600;margin-bottom:8px;overflow-wrap:anywhere}
.state figcaption span{font-weight:400;color:var(--soft)}
.views{display:flex;gap:28px;align-items:flex-start;flex-wrap:wrap}
.views>div{min-width:0}
.views h4{margin:0 0 6px;font-size:12.5px;color:var(--soft);font-weight:600}
.logical{overflow-x:auto;max-width:100%}
.devices{flex:1 1 320px}
.grid{display:flex;flex-wrap:wrap;gap:12px}
.dev b{font-size:12.5px}.dev span{font-size:11.5px;color:var(--soft)}
.dev small{display:block;min-height:1.4em;font-size:11.5px;color:var(--soft)}
.dev .same svg{opacity:.72}
.pair{display:flex;flex-wrap:wrap;gap:32px;align-items:flex-start}
.pair>div{min-width:0;max-width:100%;overflow-x:auto}
.pair h4{margin:6px 0;font-size:12.5px;font-weight:600}
rect.hot{stroke:#000!important;stroke-width:2.5!important}
details{margin:8px 0}summary{cursor:pointer;font-size:13px;color:var(--soft)}summary h2{color:var(--ink)}
.key{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:12.5px;color:var(--soft);margin:8px 0 0}
@media (max-width:640px){main{padding:14px 10px 40px}.card{padding:14px 12px}h1{font-size:21px}
dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:6px}}
@media print{body{background:#fff;font-size:12px}.bar{display:none!important}.state{display:block!important}
.card{border:none;padding:6px 0}
details::details-content{content-visibility:visible;display:block}.wide,pre{overflow:visible;max-height:none}
a{color:inherit;text-decoration:none}.state,tr{break-inside:avoid}}
"""

_DARK = (
    "@media screen and (prefers-color-scheme:dark){"
    f".pic{{{colours.DARK}}}"
    ":root{--bg:#0e1014;--good:#5fd09a;--bad:#ff9178;--mark:#7db4ee}"
    ".pic .edge{stroke:#0b0c0f}.pic .cell{stroke:#16191f}rect.hot{stroke:#fff!important}}"
)

# Plain functions; each works on the elements of one slider. A page may have no slider.
_SCRIPT = """
document.documentElement.classList.add("scripted");
for (const box of document.querySelectorAll(".steps")) {
  const states = [...box.querySelectorAll(".state")];
  const slider = box.querySelector("input"), said = box.querySelector("output");
  const show = at => {
    at = Math.max(0, Math.min(states.length - 1, at));
    states.forEach((each, i) => each.classList.toggle("now", i === at));
    slider.value = at;
    said.textContent = states[at].dataset.short;
    slider.setAttribute("aria-valuetext", states[at].dataset.title);
  };
  slider.addEventListener("input", () => show(+slider.value));
  box.querySelector(".back").addEventListener("click", () => show(+slider.value - 1));
  box.querySelector(".on-").addEventListener("click", () => show(+slider.value + 1));
  box.show = show;
  show(0);
  const hot = name => {
    for (const each of box.querySelectorAll(".now rect[data-p]")) each.classList.toggle("hot", each.dataset.p === name);
  };
  box.addEventListener("pointerover", event => hot(event.target.dataset && event.target.dataset.p));
  box.addEventListener("pointerleave", () => hot());
}
const follow = () => {
  const card = document.getElementById(location.hash.slice(1)), folded = card && card.querySelector("details");
  if (folded) folded.open = true;
  const [, id, step] = /^#(.*)=(\\d+)$/.exec(location.hash) || [];
  const box = id && document.getElementById(id);
  if (box && box.show) { box.show(+step); box.scrollIntoView(); }
};
addEventListener("hashchange", follow);
follow();
"""


def page(title: str, *body: Markup) -> str:
    """Returns the text of the HTML file; `body` is markup."""
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", title),
        element("style", Markup(colours.styles() + _STYLE + _DARK)),
    ]
    patterns = element(
        "svg", colours.definitions(), width="0", height="0", style="position:absolute", aria_hidden="true"
    )
    parts = [patterns, element("main", *body), element("script", Markup(_SCRIPT))]
    return f'<!doctype html>\n<html lang="en">{element("head", *head)}{element("body", *parts, class_="pic")}</html>\n'


def in_frame(html: str, height: int) -> str:
    """Returns a frame for notebooks that contains a page; the styles and the script of the page stay inside."""
    style = f"width:100%;height:{height}px;border:0"
    return element("iframe", title="reshard", sandbox="allow-scripts", style=style, srcdoc=str(html))


def svg(width: float, height: float, content: object, label: str, *, fits: bool = True) -> Markup:
    """Returns a picture of this width and height in pixels; if `fits` is true, it shrinks in a narrow window."""
    size = f"0 0 {width:.0f} {height:.0f}"
    return element(
        "svg",
        content,
        viewBox=size,
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        class_="fit" if fits else None,
        role="img",
        aria_label=label,
    )


def twin(text: str, said: str = "as text") -> Markup:
    """Returns a folded block with the text that belongs to a picture."""
    return element("details", element("summary", said), element("pre", text))


def card(*content: object, **attributes: object) -> Markup:
    return element("section", *content, class_="card", **attributes)


def facts(rows: list[tuple[str, object]]) -> Markup:
    """Returns a list of terms with their values; terms with an empty value are left out."""
    return element("dl", joined(joined([element("dt", term), element("dd", what)]) for term, what in rows if what))
