"""Shell completion: commands, options, and the names of models, engines and formats."""

from __future__ import annotations

import pytest

from tests.cli.running import program


def completions(words: str) -> list[str]:
    """Return what bash is offered after `words`."""
    result = program(_KVCALC_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1))
    assert (result.code, result.err) == (0, "")
    return [line.partition(",")[2] for line in result.out.splitlines()]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("kvcalc ex", ["explain"]),
        ("kvcalc size --kv", ["--kv-dtype"]),
        ("kvcalc size gpt2-s", ["gpt2-small"]),
        ("kvcalc show openai-community/gpt2-x", ["openai-community/gpt2-xl"]),
        ("kvcalc compare gpt2-small gpt2-m", ["gpt2-medium"]),
        ("kvcalc models gpt2-m", ["gpt2-medium"]),
        ("kvcalc size gpt2 --engine id", ["ideal"]),
        ("kvcalc engines id", ["ideal"]),
        ("kvcalc size gpt2 --kv-dtype q8", ["q8_0"]),
        ("kvcalc size gpt2 --kv-dtype q8_0/q4_0", ["q8_0/q4_0"]),
        ("kvcalc compare gpt2 --kv-dtypes fp16,q8_0/fp3", ["fp16,q8_0/fp32"]),
        ("kvcalc compare gpt2 --attention mha,mq", ["mha,mqa"]),
        ("kvcalc size gpt2 --format ", ["table", "json", "csv", "md"]),
        ("kvcalc size gpt2 --units s", ["si"]),
        # What is wrong so far does not stop the completion of what follows.
        ("kvcalc size --ctx nonsense gpt2-s", ["gpt2-small"]),
        ("kvcalc siez gpt2-s", [""]),
    ],
)
def test_tab_offers_what_goes_on(words: str, offered: list[str]) -> None:
    """The word under the cursor is completed from what is known."""
    assert completions(words) == offered


def test_files_are_offered_where_no_model_matches() -> None:
    """A path is completed by the shell itself."""
    result = program(_KVCALC_COMPLETE="bash_complete", COMP_WORDS="kvcalc size ./spec", COMP_CWORD="2")
    assert result.out == "file,./spec\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_each_shell_is_printed(shell: str) -> None:
    """`_KVCALC_COMPLETE=bash_source kvcalc` prints what the shell must read."""
    result = program(_KVCALC_COMPLETE=f"{shell}_source")
    if result.code and "Bash" in result.err:
        pytest.skip("click finds no bash that is new enough")
    assert result.code == 0
    assert "_KVCALC_COMPLETE" in result.out
