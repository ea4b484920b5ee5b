"""The server is killed in the middle of training, and the client sees only a pause.

Every accepted operation is on disk before it is acknowledged. The example trains once in peace and
once with a SIGKILL half-way, and compares the losses: nothing was lost, nothing applied twice.

    python examples/recovery.py --local
"""

from __future__ import annotations

import threading
import time

import chat
import connection
import curve
import serving

import tinkex

TEXT = "Whatever dies, nothing that was accepted is lost, and nothing is applied twice."
ADAM = tinkex.AdamParams(learning_rate=2e-3)
TOLERANCE = 1e-4


def main() -> None:
    options = connection.parse(__doc__, steps=12)
    if options.base_url:
        raise SystemExit("this example kills its server, so it starts one of its own: use --local")
    with serving.served([options.model]) as server:
        peaceful, _ = train(server, options, kill_after=None)
        disturbed, pause = train(server, options, kill_after=options.steps // 2)
    difference = max(abs(x - y) for x, y in zip(peaceful, disturbed, strict=True))
    print(f"longest step with the kill: {pause:.1f} s (the restart is in it)")
    print(f"the two runs differ by at most {difference:.1e} (tolerance {TOLERANCE})")
    series = {"in peace": peaceful, "killed half-way": disturbed}
    print("curve:", curve.draw(options.out / "recovery.png", series))
    if difference > TOLERANCE:
        raise SystemExit("the killed run went another way")


def train(
    server: serving.Server, options: connection.Options, kill_after: int | None
) -> tuple[list[float], float]:
    """Losses, and the longest time one step took."""
    losses: list[float] = []
    longest = 0.0
    with tinkex.ServiceClient(base_url=server.address, api_key="tml-local") as service:
        training = service.create_lora_training_client(options.model, rank=8, seed=5)
        tokens = training.get_tokenizer().encode(TEXT, add_special_tokens=False)
        data = [chat.next_token_datum(tokens, [1.0] * len(tokens))] * 4
        for number in range(options.steps):
            start = time.perf_counter()
            gradients = training.forward_backward(data, "cross_entropy")
            update = training.optim_step(ADAM)
            if number == kill_after:
                strike(server)
            losses.append(chat.mean_loss(gradients.result(), data))
            update.result()
            longest = max(longest, time.perf_counter() - start)
    return losses, longest


def strike(server: serving.Server) -> None:
    """Kill the server with two operations under way; bring it back behind the client's back."""
    print("  kill -9, and a restart on the same home")
    server.kill()
    threading.Thread(target=server.start).start()


if __name__ == "__main__":
    main()
