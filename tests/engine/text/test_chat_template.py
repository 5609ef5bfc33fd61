from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from engine.errors import InvalidRequest, ModelLoadError, NoChatTemplate
from engine.text.chat_template import ChatTemplate, MissingChatTemplate
from tests.engine.toys import CHAT_TEMPLATE

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <brief> & kind"},
    {"role": "user", "content": "héllo 'you'"},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {"é": 1}}]},
]
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
]
# Written after what the templates of the common model families use.
TEMPLATES = {
    "plain": CHAT_TEMPLATE,
    "whitespace": """
{% for m in messages %}
    {{ m.role }}
    {% if loop.last %}
 x{% endif %}
{% endfor %}
""",
    "json": """{{ messages | tojson }}{{ tools | tojson(indent=2) }}
{{ messages[0] | tojson(sort_keys=true, separators=(',', ':')) }}""",
    "loop controls": """{% for m in messages %}
{% if loop.index == 2 %}{% continue %}{% endif %}
{{ m.role }}{% if m.content is none %}{% break %}{% endif %}
{% endfor %}""",
    "generation": """{% for m in messages %}
{% generation %}{{ m.role }}{% endgeneration %}
{% endfor %}""",
    "namespace": """{% set ns = namespace(found=false) %}
{% for m in messages %}{% set ns.found = true %}{% endfor %}{{ ns.found }}""",
    "undefined": "{{ nothing }}{% if nothing is defined %}no{% endif %}{{ messages[1].missing }}",
    "strings": """{{ messages[1].content.split(' ')[-1].strip("'") | upper }}
{{ '\\n' }}{{ eos_token }}""",
    "macro": "{% macro line(m) %}[{{ m.role }}]{% endmacro %}{{ line(messages[0]) }}{{ flag }}",
    "shadowing": "{% set messages = messages[1:] %}{{ messages | length }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_renders_as_transformers_does(name: str, add_generation_prompt: bool) -> None:
    tokens: Any = {"bos_token": "<s>", "eos_token": "</s>"}
    rendered: Any = render_jinja_template(
        [MESSAGES],
        tools=list(TOOLS),
        chat_template=TEMPLATES[name],
        add_generation_prompt=add_generation_prompt,
        flag="on",
        **tokens,
    )
    template = ChatTemplate({"default": TEMPLATES[name]}, tokens)
    text = template.render(
        MESSAGES, tools=TOOLS, add_generation_prompt=add_generation_prompt, flag="on"
    )
    (expected,), _ = rendered
    assert text == expected


def test_strftime_now() -> None:
    template = ChatTemplate({"default": "{{ strftime_now('%Y') }}"})
    assert template.render([]) in {str(datetime.now().year), str(datetime.now().year - 1)}


def test_tools_use_their_own_template_where_there_is_one() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "tools"})
    assert template.render([]) == "plain"
    assert template.render([], tools=TOOLS) == "tools"


class TestRefusals:
    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
            ("{{ messages[0].content + 1 }}", "can only concatenate"),
            ("{{ missing.attribute }}", "'missing' is undefined"),
            ("{{ messages.append(1) }}", "append"),
            ("{{ messages.__class__.__mro__ }}", "unsafe"),
            ("{{ 1 // 0 }}", "zero"),
            ("{{ ('%c' | string) % -1 }}", "refused"),
        ],
    )
    def test_a_template_that_raises_refuses_the_request(self, source: str, reason: str) -> None:
        with pytest.raises(InvalidRequest, match=reason):
            ChatTemplate({"default": source}).render([{"role": "user", "content": "a"}])

    def test_sandbox_bounds_ranges(self) -> None:
        with pytest.raises(InvalidRequest, match="Range too big"):
            ChatTemplate({"default": "{{ range(10 ** 9) | list }}"}).render([])

    def test_variables_of_the_template_cannot_be_replaced(self) -> None:
        template = ChatTemplate({"default": "{{ bos_token }}"}, {"bos_token": "<s>"})
        with pytest.raises(InvalidRequest, match="'bos_token' is not a variable"):
            template.render([], bos_token="x")

    def test_a_broken_template_is_found_at_load(self) -> None:
        with pytest.raises(ModelLoadError, match="'default' is broken"):
            ChatTemplate({"default": "{% for %}"})


class TestLoad:
    def write(self, folder: Path, config: dict[str, Any]) -> None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))

    def test_inline(self, tmp_path: Path) -> None:
        self.write(tmp_path, {"chat_template": "{{ bos_token }}a", "bos_token": {"content": "<s>"}})
        assert ChatTemplate.load(tmp_path).render([]) == "<s>a"

    def test_inline_list(self, tmp_path: Path) -> None:
        entries = [{"name": n, "template": n} for n in ("default", "tool_use")]
        self.write(tmp_path, {"chat_template": entries})
        assert ChatTemplate.load(tmp_path).render([], tools=[]) == "tool_use"

    def test_the_file_wins(self, tmp_path: Path) -> None:
        self.write(tmp_path, {"chat_template": "inline"})
        (tmp_path / "chat_template.jinja").write_text("file")
        extra = tmp_path / "additional_chat_templates"
        extra.mkdir()
        (extra / "tool_use.jinja").write_text("extra")
        template = ChatTemplate.load(tmp_path)
        assert template.render([]) == "file"
        assert template.render([], tools=TOOLS) == "extra"

    def test_none(self, tmp_path: Path) -> None:
        with pytest.raises(NoChatTemplate, match="has no chat template"):
            ChatTemplate.load(tmp_path)

    def test_a_file_that_is_named_wins_over_all(self, tmp_path: Path) -> None:
        self.write(tmp_path, {"chat_template": "inline", "bos_token": "<s>"})
        named = tmp_path / "mine.jinja"
        named.write_text("{{ bos_token }}mine")
        assert ChatTemplate.load(tmp_path, named).render([]) == "<s>mine"
        named.unlink()
        with pytest.raises(ModelLoadError, match=r"mine\.jinja cannot be read"):
            ChatTemplate.load(tmp_path, named)

    def test_a_model_without_one_takes_no_chats(self) -> None:
        template = MissingChatTemplate()
        assert template.variables == frozenset()
        assert not template.mentions("<think>")
        with pytest.raises(InvalidRequest, match="has no chat template, so it takes no chats"):
            template.render([{"role": "user", "content": "hi"}])

    def test_no_default(self, tmp_path: Path) -> None:
        self.write(tmp_path, {"chat_template": [{"name": "rag", "template": "x"}]})
        with pytest.raises(ModelLoadError, match="no default chat template"):
            ChatTemplate.load(tmp_path)
