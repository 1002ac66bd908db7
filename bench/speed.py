"""What README says of speed: its table and its picture, from results of several processors.

`python -m bench.speed` writes both. The table names the command that measures each line anew:
`python -m bench again NAME` runs the command that stands in a file of results.
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterable

from bench.results import Record, Results, geometric_mean, speedup

FOLDER = pathlib.Path(__file__).parent / "results"
ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "pictures" / "speed.svg"
BEGIN, END = "<!-- speed: `python -m bench.speed` writes it -->", "<!-- end of speed -->"
RIVALS = {"eager": "eager", "inductor": "Inductor"}


@dataclasses.dataclass(frozen=True)
class Source:
    """Figures of one processor.

    Attributes:
        file: in bench/results, without its ending.
        processor: its name, with the vectors that kernels use.
        what: what was timed.
        command: what times it anew; "" for the one in the file.
        subject: the backend of ours.
    """

    file: str
    processor: str
    what: str
    command: str = ""
    subject: str = "openxla"

    def records(self) -> list[Record]:
        """A record for each model."""
        return list(Results(FOLDER / f"{self.file}.jsonl").models.values())

    def over(self, rival: str) -> list[float]:
        """Of each model: how many times as fast as a rival."""
        found = (speedup(record, self.subject, [rival]) for record in self.records())
        return [times for times in found if times is not None]

    def compiled(self) -> list[float]:
        """Of each model: Inductor's time to compile, by ours; empty where nobody kept them."""
        pairs = ((r["backends"].get("inductor", {}), r["backends"][self.subject])
                 for r in self.records())  # fmt: skip
        return [i["cold_s"] / o["cold_s"] for i, o in pairs if "cold_s" in i and "cold_s" in o]


ZEN, EPYC, XEON = "AMD EPYC (Zen 5, AVX-512)", "AMD EPYC (AVX2)", "Intel Xeon (AVX-512, AMX)"
AGAIN, STEP = "python -m bench again", "openxla-step"
# fmt: off
SOURCES = (
    Source("2026-11-24-standard-inference-float32-epyc", ZEN, "inference, float32"),
    Source("2026-11-26-runtimes-inference-float32-epyc", EPYC, "inference, float32"),
    Source("2026-11-29-demo-xeon-amx", XEON, "inference, float32", "make demo"),
    Source("2026-11-27-bfloat16-inference-xeon-amx", XEON, "inference, bfloat16"),
    Source("2026-11-28-training-float32-xeon-amx", XEON, "`train_step`, float32", "", STEP),
    Source("2026-11-28-training-bfloat16-xeon-amx", XEON, "`train_step`, bfloat16", "", STEP),
    Source("2026-11-28-gpu-check-h200", "NVIDIA H200", "inference", "make gpu-check"),
)
# fmt: on


def _mean(ratios: Iterable[float]) -> str:
    ratios = list(ratios)
    return f"{geometric_mean(ratios):.2f}" if ratios else "–"  # noqa: RUF001, as in the other tables


def table() -> str:
    """README's table in Markdown: geometric means, a line for each source."""
    lines = [
        "| | | models | over eager | over Inductor | Inductor's compile time over ours | command |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for source in SOURCES:
        count = len(source.records())
        means = [_mean(source.over("eager")), _mean(source.over("inductor"))]
        means.append(_mean(source.compiled()))
        cells = [
            source.processor,
            source.what,
            str(count),
            *means,
            f"`{source.command or f'{AGAIN} {source.file}'}`",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def readme() -> str:
    """README with its table up to date."""
    before, rest = README.read_text().split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


def draw(picture: pathlib.Path = PICTURE) -> None:
    """Draw each model as a dot and each geometric mean as a bar, over eager and over Inductor."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "speed"  # the same file from the same figures
    from matplotlib import pyplot

    # fmt: off
    figure, panels = pyplot.subplots(
        1, 2, figsize=(9, 0.62 * len(SOURCES) + 0.8), sharey=True, layout="constrained"
    )
    # fmt: on
    ticks = [0.7, 1, 1.5, 2, 3, 5]
    for axes, (rival, name) in zip(panels, RIVALS.items(), strict=True):
        for row, source in enumerate(SOURCES):
            times = source.over(rival)
            mean = geometric_mean(times)
            axes.barh(row, mean - 1, left=1, height=0.55, color="#9fb8e8")
            axes.plot(times, [row] * len(times), "o", markersize=4, color="#27509b", alpha=0.55)
            axes.text(mean, row - 0.4, f"{mean:.2f}", ha="center", va="bottom", fontsize=8)
        axes.axvline(1, color="#555555", linewidth=1)
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axes.set_xlim(0.6, 6)
        axes.set_title(f"times as fast as {name}", fontsize=10)
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(left=False)
    labels = [f"{s.processor}\n{re.sub('`', '', s.what)}" for s in SOURCES]
    panels[0].set_yticks(range(len(SOURCES)), labels, fontsize=8)
    panels[0].invert_yaxis()
    figure.savefig(picture, metadata={"Date": None} if picture.suffix == ".svg" else None)
    pyplot.close(figure)


def main() -> None:
    """Write README's table and the picture."""
    README.write_text(readme())
    draw()


if __name__ == "__main__":
    main()
