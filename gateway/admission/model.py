"""What the gateway knows of a model: its settings, its engines, and how texts become its tokens."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine import sampling_defaults
from engine.client.fleet import Fleet
from engine.errors import EngineDead, NoChatTemplate
from engine.pooling import PoolingModel
from engine.spec.config import TEXT_METHODS
from engine.text.chat_template import ChatTemplate, MissingChatTemplate
from engine.text.tokenizer import Tokenizer
from gateway.admission.priorities import Priorities
from gateway.admission.sampling import Sampling
from gateway.admission.tool_use import Tools
from gateway.config import Config
from gateway.images.images import Images, ModelVision
from gateway.parsers import formats
from gateway.parsers.reasoning import ReasoningFormat
from gateway.prompts.chat import ChatPrompts
from gateway.prompts.public_prefixes import PublicPrefixes
from gateway.prompts.threads import PromptThreads
from grammar.compiler import GrammarChecker
from grammar.vocabulary import Vocabulary
from tenants.limits import Price

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of this server. ``load`` makes it."""

    config: Config
    engine: Fleet
    tokenizer: Tokenizer
    compiler: GrammarChecker
    prompts: ChatPrompts
    reasoning: ReasoningFormat | None
    """None for a model that does not reason before it answers."""
    tools: Tools
    sampling: Sampling
    priorities: Priorities
    public_prefixes: PublicPrefixes
    pooling: PoolingModel | None = None
    """What it makes of a text; None if it generates."""
    vision: ModelVision | None = None
    """None if it reads text only."""

    @classmethod
    def load(
        cls,
        config: Config,
        engine: Fleet,
        threads: PromptThreads,
        *,
        images: Images | None = None,
        sampling: Mapping[str, float | int] | None = None,
    ) -> Model:
        """Read the model's tokenizer, chat template and image processor.

        ``images``: None, and the model reads text only. ``sampling``: defaults in place of the
        model's own. Raises ``ModelLoadError`` if they cannot
        be read, and ``ConfigError`` if the chat template refuses a public system prompt.
        """
        settings = config.models
        tokenizer = Tokenizer.load(config.engine.model_dir)
        pooling = config.engine.pooling
        template = MissingChatTemplate() if pooling is not None else _chat_template(config)
        reasoning = formats.reasoning_format(settings.reasoning_parser, template)
        vision = ModelVision.of(config.engine.model_dir, images)
        return cls(
            config=config,
            engine=engine,
            tokenizer=tokenizer,
            compiler=GrammarChecker(_vocabulary(tokenizer), num_workers=2),
            prompts=ChatPrompts(
                template,
                tokenizer,
                threads,
                allowed_kwargs=settings.template_kwargs,
                reasoning=reasoning,
                processor=None if vision is None else vision.processor,
            ),
            reasoning=reasoning,
            tools=Tools(formats.tool_format(settings.tool_parser, template), tokenizer),
            sampling=Sampling(
                tokenizer, _sampling_defaults(config) if sampling is None else sampling
            ),
            priorities=Priorities(settings.service_tiers or {}, config.engine.policy),
            public_prefixes=PublicPrefixes(
                settings.public_prefixes, template=template, tokenizer=tokenizer
            ),
            pooling=pooling,
            vision=vision,
        )

    @property
    def name(self) -> str:
        """What clients call it, and what metrics and the ledger do."""
        return self.config.model_name

    @property
    def drafts_texts(self) -> bool:
        """Whether its engines draft from texts, and so from what a client predicts."""
        speculative = self.config.engine.speculative_config
        return speculative is not None and speculative.method in TEXT_METHODS

    @property
    def price(self) -> Price:
        return self.config.models.price

    @property
    def adapters_dir(self) -> Path | None:
        """The folder of its adapters; None if it takes none."""
        folder = self.config.models.adapters_dir
        return None if folder is None else Path(folder)

    @property
    def max_model_len(self) -> int | None:
        """The most tokens of prompt and answer; None while no engine serves it."""
        try:
            return self.engine.info.max_model_len
        except EngineDead:
            return None


def _vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(
        tokenizer.vocabulary(),
        tokenizer.eos_token_ids,
        tokenizer.special_ids,
        tokenizer.vocab_size,
    )


def _chat_template(config: Config) -> ChatTemplate:
    file = config.models.chat_template
    try:
        return ChatTemplate.load(config.engine.model_dir, None if file is None else Path(file))
    except NoChatTemplate:
        logger.warning(
            "%s has no chat template: chats are refused, text completions are served; "
            "models.chat_template names one",
            config.model_name,
        )
        return MissingChatTemplate()


def _sampling_defaults(config: Config) -> Mapping[str, float | int]:
    if config.models.generation_config == "ignore":
        return {}
    return sampling_defaults.load(config.engine.model_dir) or {}
