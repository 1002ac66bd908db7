"""Whether torch's work and PJRT's follow each other, which are on streams of their own."""

from collections.abc import Callable, Iterator

import torch

from bench.gpu_check.comparison import Check, against_eager, compiled, wait

_CYCLES = 200_000_000  # a tenth of a second


def streams(device: str) -> Iterator[Check]:
    """A program reads what torch is still writing, and the other way round."""

    def busy() -> None:
        if device == "cuda":
            torch.cuda._sleep(_CYCLES)

    def late_input() -> None:
        f = compiled(lambda x: x + 1)
        for expected in range(1, 5):
            x = torch.zeros(1 << 20, device=device)
            wait(device)
            busy()
            x.fill_(expected)
            assert f(x).eq(expected + 1).all(), "the program did not wait for its input"

    def late_parameter() -> None:
        weight = torch.zeros(1 << 20, device=device)

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(weight)

            def forward(self) -> torch.Tensor:
                return self.weight * 2

        model = Model()
        f = compiled(model)
        for expected in range(1, 5):
            wait(device)
            busy()
            weight.fill_(expected)
            assert f().eq(2 * expected).all(), "the program did not wait for a parameter"

    def on_another_stream() -> None:
        f = compiled(lambda x: x + 1)
        x = torch.zeros(1 << 20, device=device)
        if device != "cuda":
            return
        with torch.cuda.stream(torch.cuda.Stream()):
            for expected in range(1, 5):
                busy()
                x.fill_(expected)
                assert f(x).mul(2).eq(2 * expected + 2).all()

    def late_result() -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            for _ in range(10):
                x = x @ x
            return x

        x = torch.eye(4096 if device == "cuda" else 256, device=device)
        run = compiled(f)
        for _ in range(3):
            assert run(x).mul(2).diagonal().eq(2).all(), "torch did not wait for the result"

    def freed_results() -> None:
        """The memory of a result that torch still reads is not given to another program."""
        f = compiled(lambda x: x + 1)
        x = torch.zeros(1 << 22, device=device)
        for _ in range(20):
            y = f(x)
            busy()
            z = y.clone()
            del y
            other = f(x + 5)
            assert z.eq(1).all(), "the memory of a result was used again too early"
            assert other.eq(6).all()

    def odd_address() -> None:
        x = torch.randn(1001, device=device)
        for start in (1, 2, 3, 4):
            against_eager(lambda x: x * 2 + 1, x[start:])

    def overlap() -> None:
        def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return y * 2

        found = []
        for call in (f, compiled(f)):
            x = torch.arange(8.0, device=device)
            found.append((call(x[:4], x[2:6]).tolist(), x.tolist()))
        assert found[0] == found[1], f"{found[1]}, and eager has {found[0]}"

    def unchanged() -> None:
        x = torch.ones(4, 4, device=device)
        f = compiled(lambda x: x.add(1))
        f(x)
        assert x.eq(1).all()

    checks: tuple[Callable[[], None], ...] = (
        late_input,
        late_parameter,
        on_another_stream,
        late_result,
        freed_results,
        odd_address,
        overlap,
        unchanged,
    )
    for check in checks:
        name = check.__name__.replace("_", " ")
        yield name, _without_gradients(check)


def _without_gradients(check: Callable[[], None]) -> Callable[[], None]:
    return torch.no_grad()(check)
