"""Decides whether a request may run, and turns its fields into token ids and sampling parameters.

No field is accepted and ignored: one that the server cannot act on is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from uuid import UUID

from engine.client.client import EngineClient
from engine.sampling_params import SamplingParams
from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from gateway.admission import field_checks, output_format, tool_use, unsupported
from gateway.admission.admitted import Admitted
from gateway.admission.output_format import OutputFormat
from gateway.admission.priorities import Priorities
from gateway.admission.sampling import Sampling, stop_strings
from gateway.admission.served_models import ServedModel, ServedModels
from gateway.admission.tool_use import Tools, ToolUse
from gateway.admission.unenforced import LooseCalls, Unenforced
from gateway.concurrency.lanes import Lanes
from gateway.config import Config
from gateway.errors import (
    ContextLengthExceeded,
    Draining,
    InvalidRequestError,
    Overloaded,
)
from gateway.parsers import formats, reasoning
from gateway.parsers.answer import AnswerParser
from gateway.parsers.reasoning import ReasoningParser
from gateway.prompts import texts
from gateway.prompts.chat import ChatPrompt, ChatPrompts
from gateway.prompts.texts import Echo, TextPrompt
from gateway.prompts.threads import PromptThreads
from gateway.schemas.chat import ChatCompletionRequest, ChatFields
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.sampling import SamplingFields
from gateway.secrets import Secrets
from grammar.compiler import GrammarChecker
from grammar.errors import CompilerUnavailable, GrammarError
from grammar.schema.scope import Finding
from tenants.access import require_scope
from tenants.authenticator import Authenticator
from tenants.errors import QuotaExceeded
from tenants.quota import Hold, Quota
from tenants.salts import cache_salt
from tenants.types import Principal, Scope
from tenants.usage import Ledger

DEFAULT_COMPLETION_TOKENS = 16
"""New tokens of a text completion that sets no limit, as in OpenAI's API."""


class Admission:
    """Turns requests into ``Admitted`` ones. There is one for each gateway process."""

    def __init__(
        self,
        config: Config,
        *,
        models: ServedModels,
        engine: EngineClient,
        ledger: Ledger,
        quota: Quota,
        authenticator: Authenticator,
        secrets: Secrets,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        compiler: GrammarChecker,
        grammar_lanes: Lanes,
        sampling_defaults: Mapping[str, float | int] | None = None,
    ) -> None:
        self.draining = False
        """Set by ``drain``, for good: nothing is admitted any more."""
        self.models = models
        self._default_max_tokens = config.models.default_max_tokens
        self._engine = engine
        self._ledger = ledger
        self._quota = quota
        self._authenticator = authenticator
        self._price = config.models.price
        self._salt_root = secrets.cache_salt_root
        self._tokenizer = tokenizer
        self._compiler = compiler
        self._grammar_lanes = grammar_lanes
        settings = config.models
        self.prompt_threads = PromptThreads()
        self.prompts = ChatPrompts(
            template, tokenizer, self.prompt_threads, allowed_kwargs=settings.template_kwargs
        )
        self.tools = Tools(formats.tool_format(settings.tool_parser, template), tokenizer)
        self.has_reasoning = formats.has_reasoning(settings.reasoning_parser, template)
        """Whether the model reasons before it answers."""
        self._sampling = Sampling(tokenizer, sampling_defaults or {})
        self._priorities = Priorities(settings.service_tiers or {}, config.engine.policy)

    def drain(self) -> None:
        """Admit nothing from here on, not even requests that are being admitted: the server shuts
        down."""
        self.draining = True
        self._quota.close_queue()

    def check_open(self, principal: Principal) -> None:
        """Raise what is known to refuse any request of the principal now: ``Draining``, then
        ``Overloaded``, then ``QuotaExceeded``. What another worker may not refuse comes before what
        all of them do."""
        self._check_serving()
        self._quota.check(principal, price=self._price)

    async def admit_completion(
        self, request: ChatCompletionRequest, *, request_id: UUID, principal: Principal
    ) -> Admitted:
        """As ``admit``, with the fields that only Chat Completions has."""
        unsupported.refuse(request, unsupported.CHAT)
        field_checks.check_stream_options(request)
        return await self.admit(
            request,
            model=request.model,
            num_choices=field_checks.num_choices(request.n),
            request_id=request_id,
            principal=principal,
        )

    async def admit_text_completion(
        self, request: CompletionRequest, *, request_id: UUID, principal: Principal
    ) -> tuple[Admitted, list[TextPrompt]]:
        """As ``admit``, for prompts without a chat template. Also returns the prompts, which
        ``echo`` needs."""
        unsupported.refuse(request, unsupported.COMPLETIONS)
        field_checks.check_stream_options(request)
        require_scope(principal.key, "chat")
        self.check_open(principal)
        served = self.models.find(principal, request.model)
        end_user = field_checks.end_user(request.user, None)
        num_choices = field_checks.num_choices(request.n)
        if request.best_of not in (None, num_choices):
            raise InvalidRequestError("Must equal n: no answer is thrown away.", param="best_of")
        max_model_len = self._engine.info.max_model_len
        await self._engine.check_queue(principal.tenant.id.hex)
        prompts = await texts.read(
            request.prompt,
            self._tokenizer,
            self.prompt_threads,
            tenant=principal.tenant.id,
            max_model_len=max_model_len,
            wants_text=bool(request.echo),
        )
        longest = max(len(prompt.token_ids) for prompt in prompts)
        room = field_checks.room(longest, max_model_len, param="prompt")
        max_tokens = request.max_tokens
        if max_tokens is None:
            max_tokens = min(room, self._default_max_tokens or DEFAULT_COMPLETION_TOKENS)
        field_checks.check_fits(max_tokens, longest, max_model_len, param="max_tokens")
        output = output_format.read(request)
        unenforced = _unenforced(output, await self._compile(output, principal))
        params = self._sampling.params(
            request, max_tokens=max_tokens, structured_outputs=output_format.for_engine(output)
        )
        admitted = await self._admitted(
            request,
            served=served,
            request_id=request_id,
            principal=principal,
            prompts=[prompt.token_ids for prompt in prompts],
            params=params,
            num_choices=num_choices,
            make_parser=None,
            skip_special_tokens=params.skip_special_tokens,
            end_user=end_user,
            unenforced=unenforced,
        )
        return admitted, prompts

    def echo(self, request: CompletionRequest, prompt: TextPrompt) -> Echo:
        """What to repeat of ``prompt`` before its answer."""
        if not request.echo:
            return Echo()
        if request.logprobs is None:
            return Echo(prompt.text)
        first = self._tokenizer.token_bytes(prompt.token_ids[0]).decode(errors="replace")
        return Echo(prompt.text, first)

    async def admit(
        self,
        fields: ChatFields,
        *,
        model: str | None,
        request_id: UUID,
        principal: Principal,
        num_choices: int = 1,
        scope: Scope = "chat",
    ) -> Admitted:
        """Check everything that can be checked before the engine gets the request.

        The result has a reservation, which ``Generations.begin`` must take over without an await in
        between. Raises ``ApiError``, ``EngineDead``, ``InvalidRequest`` or ``TenantsError``, which
        ``errors.to_api_error`` translates for the client.
        """
        require_scope(principal.key, scope)
        self.check_open(principal)
        served = self.models.find(principal, model)
        end_user = field_checks.end_user(fields.user, fields.safety_identifier)
        use = await self._tools(fields, principal)
        field_checks.check_metadata(fields.metadata)
        max_model_len = self._engine.info.max_model_len
        # Each message has at least one token, so too many need not be rendered.
        if len(fields.messages) > max_model_len:
            raise ContextLengthExceeded(
                f"There are {len(fields.messages)} messages, but the model takes {max_model_len} "
                "tokens in all.",
                param="messages",
            )
        await self._engine.check_queue(principal.tenant.id.hex)
        output = self._output(fields, use)
        findings = await self._compile(output, principal, use)
        prompt = await self._prompt(fields, use, principal, max_model_len)
        max_tokens = self._max_tokens(fields, len(prompt.token_ids), max_model_len)
        params = self._sampling.params(
            fields,
            max_tokens=max_tokens,
            structured_outputs=output_format.for_engine(output, self._end_of_reasoning(prompt)),
        )
        return await self._admitted(
            fields,
            served=served,
            request_id=request_id,
            principal=principal,
            prompts=[prompt.token_ids],
            params=params,
            num_choices=num_choices,
            make_parser=self._parser_maker(fields, use, prompt),
            skip_special_tokens=params.skip_special_tokens and not self._has_special_marks(use),
            end_user=end_user,
            unenforced=_unenforced(output, findings),
            loose_calls=(
                None
                if use is None
                else self.tools.loose_calls(use, None if output is None else output.spec, findings)
            ),
            service_tier=self._priorities.tier(fields.service_tier),
        )

    async def count(
        self, fields: ChatFields, *, model: str | None, principal: Principal, scope: Scope = "chat"
    ) -> int:
        """The number of prompt tokens that ``admit`` would submit. Reserves nothing.

        Raises as ``admit`` does for the fields that the prompt is made of.
        """
        require_scope(principal.key, scope)
        self._check_serving()
        self.models.find(principal, model)
        use = await self._tools(fields, principal)
        return len((await self._prompt(fields, use, principal, None)).token_ids)

    async def _admitted(
        self,
        fields: SamplingFields,
        *,
        served: ServedModel,
        request_id: UUID,
        principal: Principal,
        prompts: list[list[int]],
        params: SamplingParams,
        num_choices: int,
        make_parser: Callable[[], AnswerParser] | None,
        skip_special_tokens: bool,
        end_user: str | None,
        unenforced: Unenforced | None,
        loose_calls: LooseCalls | None = None,
        service_tier: str | None = None,
    ) -> Admitted:
        """Reserve tokens of the tenant's limits, last of all checks."""
        assert params.max_tokens is not None
        stop = stop_strings(fields.stop)
        priority = principal.priority + self._priorities.shift(service_tier, fields.priority)
        field_checks.check_cache_salt(fields.cache_salt)
        salt = cache_salt(self._salt_root, principal.tenant.id, fields.cache_salt or "")
        hold = await self._reserve(
            principal,
            request_id,
            model=served.name,
            prompt_tokens=sum(map(len, prompts)),
            max_tokens=params.max_tokens * len(prompts) * num_choices,
        )
        return Admitted(
            id=request_id,
            principal=principal,
            model=served.name,
            adapter=served.adapter,
            prompts=prompts,
            params=params,
            stop=stop,
            num_choices=num_choices,
            make_parser=make_parser,
            skip_special_tokens=skip_special_tokens,
            cache_salt=salt,
            hold=hold,
            price=self._price,
            priority=priority,
            service_tier=service_tier,
            unenforced=unenforced,
            loose_calls=loose_calls,
            end_user=end_user,
        )

    def _check_serving(self) -> None:
        self._check_not_draining()
        if not self._ledger.has_room:
            raise Overloaded("Usage cannot be recorded at the moment.", retry_after_s=5)

    def _check_not_draining(self) -> None:
        if self.draining:
            raise Draining("The server is shutting down.", retry_after_s=1)

    async def _reserve(
        self,
        principal: Principal,
        request_id: UUID,
        *,
        model: str,
        prompt_tokens: int,
        max_tokens: int,
    ) -> Hold:
        """Reserve the prompt's tokens, and the first slice of the answer's.

        Raises ``QuotaExceeded`` or ``StoreUnavailable``; ``AuthenticationFailed`` or ``Draining``
        if the key was revoked, or the server began to shut down, while the request waited.
        """
        try:
            hold = await self._quota.reserve(
                principal,
                request_id=request_id,
                model=model,
                prompt_tokens=prompt_tokens,
                max_tokens=max_tokens,
                price=self._price,
            )
        except QuotaExceeded:
            self._check_not_draining()  # The queue of waiting requests may have been closed.
            raise
        try:
            # A revocation ends running requests only, so this one must look for itself.
            await self._authenticator.check(principal.key.public_id)
            self._check_not_draining()
        except BaseException:
            await self._quota.release(hold)
            raise
        return hold

    async def _tools(self, fields: ChatFields, principal: Principal) -> ToolUse | None:
        if not fields.tools:
            return self.tools.read(fields)
        # In a thread, because a request may have megabytes of schemas.
        read = partial(self.tools.read, fields)
        return await self.prompt_threads.run(read, tenant=principal.tenant.id, size=0)

    async def _prompt(
        self,
        fields: ChatFields,
        use: ToolUse | None,
        principal: Principal,
        max_model_len: int | None,
    ) -> ChatPrompt:
        return await self.prompts.encode(
            fields.messages,
            tenant=principal.tenant.id,
            max_model_len=max_model_len,
            tools=None if use is None else use.for_template(),
            kwargs=self.prompts.kwargs(fields, has_reasoning=self.has_reasoning),
        )

    def _output(self, fields: ChatFields, use: ToolUse | None) -> OutputFormat | None:
        """The format of the whole answer, calls included; None for free text."""
        wanted = output_format.read(fields)
        if use is None:
            return wanted
        if wanted is not None and wanted.spec.kind not in ("json_schema", "json_object"):
            raise InvalidRequestError(
                "Tools go together with a JSON format only, or set tool_choice to none.",
                param=wanted.param,
            )
        answer = None if wanted is None else wanted.spec
        spec = self.tools.grammar(use, answer)
        return None if spec is None else OutputFormat(spec, "tools", answer)

    async def _compile(
        self, output: OutputFormat | None, principal: Principal, use: ToolUse | None = None
    ) -> tuple[Finding, ...]:
        """Compile a format, and return what of it cannot be enforced. The engine will compile it
        again; here it is done so that a bad schema is a 400, and not a stream that fails."""
        if output is None:
            return ()
        try:
            verdict = await self._grammar_lanes.run(
                principal.tenant.id, lambda: self._compiler.submit(output.spec)
            )
        except CompilerUnavailable:
            raise
        except GrammarError as error:
            if use is not None:
                raise tool_use.refusal(error, use.callable) from None
            raise output_format.refusal(error, output.param) from None
        return verdict.unenforced

    def _end_of_reasoning(self, prompt: ChatPrompt) -> tuple[int, ...]:
        """The token ids after which a format applies; none if it applies from the start."""
        if not self.has_reasoning or prompt.ends_reasoning:
            return ()
        return tuple(self._tokenizer.encode(reasoning.CLOSE, add_special_tokens=False))

    def _parser_maker(
        self, fields: ChatFields, use: ToolUse | None, prompt: ChatPrompt
    ) -> Callable[[], AnswerParser] | None:
        if use is None and not self.has_reasoning:
            return None
        hides_reasoning = fields.include_reasoning is False
        make_tools = None if use is None else self.tools.make_parser(use)

        def make() -> AnswerParser:
            thinks = self.has_reasoning
            return AnswerParser(
                reasoning=ReasoningParser(has_begun=prompt.begins_reasoning) if thinks else None,
                hides_reasoning=hides_reasoning,
                tools=None if make_tools is None else make_tools(),
                max_calls=None if use is None or use.is_parallel else 1,
            )

        return make

    def _has_special_marks(self, use: ToolUse | None) -> bool:
        """Whether the marks of reasoning or calls are special tokens, which the parser must
        see."""
        marks: tuple[str, ...] = (reasoning.OPEN, reasoning.CLOSE) if self.has_reasoning else ()
        if use is not None and self.tools.format is not None:
            marks += self.tools.format.marks
        return any(map(self.tools.is_special, marks))

    def _max_tokens(self, fields: ChatFields, num_prompt_tokens: int, max_model_len: int) -> int:
        room = field_checks.room(num_prompt_tokens, max_model_len, param="messages")
        name = "max_tokens" if fields.max_tokens is not None else "max_completion_tokens"
        wanted = getattr(fields, name)
        if fields.max_tokens is not None and fields.max_completion_tokens is not None:
            raise InvalidRequestError("Set max_completion_tokens or this, not both.", param=name)
        if wanted is None:
            return min(room, self._default_max_tokens or room)
        field_checks.check_fits(wanted, num_prompt_tokens, max_model_len, param=name)
        return int(wanted)


def _unenforced(output: OutputFormat | None, findings: tuple[Finding, ...]) -> Unenforced | None:
    """What must be checked of a finished document; None if nothing."""
    if output is None or not findings:
        return None
    if output.answer is not None:
        found = tool_use.about_the_answer(findings)
        return Unenforced(output.answer, found) if found else None
    return Unenforced(output.spec, findings) if output.spec.kind == "json_schema" else None
