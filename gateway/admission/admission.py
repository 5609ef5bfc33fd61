"""Decides whether a request may run, and turns its fields into token ids and sampling parameters.

No field is accepted and ignored: one that the server cannot act on is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from uuid import UUID

import msgspec

from engine.messages import IDLE_PRIORITY
from engine.sampling_params import SamplingParams
from gateway import context, tracing
from gateway.admission import field_checks, output_format, pooled, tool_use
from gateway.admission.admitted import Admitted
from gateway.admission.cold_start import ColdStart
from gateway.admission.model import Model
from gateway.admission.output_format import OutputFormat
from gateway.admission.pooled import PooledRequest
from gateway.admission.request import GenerationRequest, in_the_clients_words
from gateway.admission.sampling import stop_strings
from gateway.admission.served_models import ServedModel, ServedModels
from gateway.admission.tool_use import ToolUse
from gateway.admission.unenforced import Unenforced
from gateway.errors import Draining, InvalidRequestError, Overloaded
from gateway.images.memory import Held
from gateway.parsers.answer import AnswerParser
from gateway.prompts import texts
from gateway.prompts.chat import Ending
from gateway.prompts.images import RequestImages
from gateway.prompts.messages import text_of
from gateway.prompts.pooled import encode
from gateway.prompts.prompt import Prompt
from gateway.prompts.threads import PromptThreads
from gateway.schemas.chat import ChatCompletionRequest, ChatFields
from gateway.schemas.completions import CompletionRequest
from gateway.secrets import Secrets
from grammar.compiler import Verdict
from grammar.errors import CompilerUnavailable, GrammarError
from grammar.schema.scope import Finding
from grammar.spec import GrammarSpec
from tenants.access import require_scope
from tenants.authenticator import Authenticator
from tenants.errors import QuotaExceeded
from tenants.lanes import Lanes
from tenants.quota import Hold, Quota
from tenants.salts import cache_salt
from tenants.types import Principal
from tenants.usage import Ledger

_PREDICTED_CHARS = 16
"""Characters of a prediction that are read for each token that an answer may have."""
_TEXT_TOKENS = 16
"""New tokens of a text completion that sets no limit, as in OpenAI's API."""


class Admission:
    """Turns requests into ``Admitted`` ones. There is one for each gateway process."""

    def __init__(
        self,
        *,
        models: ServedModels,
        ledger: Ledger,
        quota: Quota,
        authenticator: Authenticator,
        secrets: Secrets,
        prompt_threads: PromptThreads,
        grammar_lanes: Lanes,
        cold_starts: Mapping[str, ColdStart] = MappingProxyType({}),
    ) -> None:
        """``cold_starts``: of the models of which there may be no engine, by name."""
        self.draining = False
        """Set by ``drain``, for good: nothing is admitted any more."""
        self.models = models
        self._ledger = ledger
        self._quota = quota
        self._authenticator = authenticator
        self._lowest_price = models.lowest_price
        self._salt_root = secrets.cache_salt_root
        self._grammar_lanes = grammar_lanes
        self.prompt_threads = prompt_threads
        self._cold_starts = cold_starts

    def drain(self) -> None:
        """Admit nothing from here on, not even requests that are being admitted: the server shuts
        down."""
        self.draining = True
        self._quota.close_queue()
        for cold_start in self._cold_starts.values():
            cold_start.end()

    def check_open(self, principal: Principal) -> None:
        """Raise what is known to refuse any request of the principal now: ``Draining``, then
        ``Overloaded``, then ``QuotaExceeded``. What another worker may not refuse comes before what
        all of them do."""
        self._check_serving()
        self._quota.check(principal, price=self._lowest_price)

    async def admit(self, request: GenerationRequest) -> Admitted:
        """Check everything that can be checked before the engine gets the request.

        The result has a reservation, which ``Generations.begin`` must take over without an await in
        between. Raises ``ApiError``, ``EngineDead``, ``InvalidRequest`` or ``TenantsError``, which
        ``errors.to_api_error`` translates for the client.
        """
        with tracing.stage("admission"):
            if request.client_name is None:
                return await self._admit_held(request)
            with in_the_clients_words(request.client_name):
                return await self._admit_held(request)

    async def count(self, request: GenerationRequest) -> int:
        """The number of prompt tokens that ``admit`` would submit. Reserves nothing.

        Raises as ``admit`` does for the fields that the prompt is made of.
        """
        fields = request.fields
        assert request.client_name is not None, "only Responses and Messages ask for this"
        assert isinstance(fields, ChatFields)
        tenant = request.principal.tenant.id
        images = RequestImages(tenant)
        try:
            with in_the_clients_words(request.client_name):
                require_scope(request.principal.key, request.scope)
                self._check_serving()
                model = self.models.find(request.principal, request.model).base
                use = await self._tools(request, model)
                num_tokens, pictures = await model.prompts.count(
                    fields.messages,
                    tenant=tenant,
                    tools=None if use is None else use.for_template(),
                    kwargs=model.prompts.kwargs(fields),
                    ending=Ending.of(fields),
                )
                if pictures:
                    await images.measure(model.vision, pictures)
                return num_tokens + images.num_tokens - len(pictures)
        finally:
            images.end()

    async def admit_pooled(self, request: PooledRequest) -> Admitted:
        """As ``admit``, for vectors and scores; ``generation.pooled.begin`` takes the result."""
        principal = request.principal
        with tracing.stage("admission"):
            require_scope(principal.key, "chat")
            self.check_open(principal)
            served = self.models.find(principal, request.model)
            model, user = served.base, field_checks.user_of(request.user)
            pooling = pooled.pooling_of(model)
            inputs = request.inputs(pooling)
            await self._wait_for_engine(model, principal)
            info = model.engine.info
            await model.engine.check_queue(principal.tenant.id.hex)
            encoded = await encode(
                inputs,
                model.tokenizer,
                self.prompt_threads,
                vocab_size=info.vocab_size,
                tenant=principal.tenant.id,
                max_model_len=info.max_model_len,
            )
            # Nothing is generated, so the last token of the prompt is reserved as the answer's.
            num_tokens = sum(len(one.token_ids) for one in encoded)
            with tracing.stage("limits"):
                hold = await self._reserve(
                    request, served, prompt_tokens=num_tokens - 1, max_tokens=1
                )
        return Admitted(
            id=request.id,
            principal=principal,
            model=served.name,
            base=model,
            prompts=[one.token_ids for one in encoded],
            second_texts=[one.second_text for one in encoded],
            ignored=tuple(request.ignored(pooling)),
            params=SamplingParams(),
            stop=(),
            num_choices=1,
            make_parser=None,
            skip_special_tokens=True,
            cache_salt="",
            hold=hold,
            price=model.price,
            priority=_priority(principal),
            end_user=user,
        )

    async def _admit_held(self, request: GenerationRequest) -> Admitted:
        """Tools that are strict only by default become loose if they are refused as strict."""
        if not isinstance(request.fields, ChatFields) or not request.fields.tools:
            return await self._admit(request)
        hold = partial(tool_use.strict_by_default, request.fields)
        tenant = request.principal.tenant.id
        fields = await self.prompt_threads.run(hold, tenant=tenant, size=0)
        if fields is not request.fields:
            try:
                return await self._admit(msgspec.structs.replace(request, fields=fields))
            except InvalidRequestError as exc:
                if not (exc.param or "").startswith("tools"):
                    raise
        return await self._admit(request)

    async def _admit(self, request: GenerationRequest) -> Admitted:
        images = RequestImages(request.principal.tenant.id)
        try:
            return await self._admit_with(images, request)
        finally:
            images.end()

    async def _admit_with(self, images: RequestImages, request: GenerationRequest) -> Admitted:
        principal, fields = request.principal, request.fields
        require_scope(principal.key, request.scope)
        self.check_open(principal)
        served = self.models.find(principal, request.model)
        model = served.base
        pooled.check_generates(model)
        end_user = field_checks.end_user(fields)
        field_checks.check_best_of(fields)
        use = await self._tools(request, model)
        await self._wait_for_engine(model, principal)
        max_model_len = model.engine.info.max_model_len
        field_checks.check_chat(fields, max_model_len)
        await model.engine.check_queue(principal.tenant.id.hex)
        output = _output(fields, use, model)
        findings = await self._compile(output, request, use, model)
        prompt = await self._prompt(request, use, model, max_model_len)
        if prompt.pictures:
            prompt = await images.look(model.vision, prompt)
        params = model.sampling.params(
            fields,
            max_tokens=_max_tokens(request, prompt, model, max_model_len),
            structured_outputs=output_format.for_engine(
                output, _end_of_reasoning(prompt, use, model)
            ),
        )
        tier = model.priorities.tier(getattr(fields, "service_tier", None))
        stop = stop_strings(fields.stop)
        shift = model.priorities.shift(tier, fields.priority)
        field_checks.check_cache_salt(fields.cache_salt)
        prediction = await self._prediction(request, model, max_model_len)
        assert params.max_tokens is not None
        num_choices, num_prompts = request.num_choices, len(prompt.token_ids)
        with tracing.stage("limits"):
            hold = await self._reserve(  # the last of all checks
                request,
                served,
                prompt_tokens=sum(map(len, prompt.token_ids)),
                max_tokens=params.max_tokens * num_prompts * num_choices,
            )
        held = await self._prepare(images, prompt, hold)
        shows_marks = prompt.is_chat and _has_special_marks(use, model)
        return Admitted(
            id=request.id,
            principal=principal,
            model=served.name,
            base=model,
            adapter=served.adapter,
            prompts=prompt.token_ids,
            prediction=prediction,
            echoes=[echo for echo in prompt.echoes for _ in range(num_choices)],
            images=held,
            num_image_tokens=images.num_tokens,
            params=params,
            stop=stop,
            num_choices=num_choices,
            make_parser=_parser_maker(fields, use, prompt, model),
            skip_special_tokens=params.skip_special_tokens and not shows_marks,
            cache_salt=cache_salt(self._salt_root, principal.tenant.id, fields.cache_salt or ""),
            hold=hold,
            price=model.price,
            priority=_priority(principal, shift),
            service_tier=tier,
            unenforced=_unenforced(output, findings),
            loose_calls=(
                None
                if use is None
                else model.tools.loose_calls(use, None if output is None else output.spec, findings)
            ),
            end_user=end_user,
            ignored=(*request.ignored, *_ignored(request, tier, model)),
        )

    async def _prepare(self, images: RequestImages, prompt: Prompt, hold: Hold) -> Held | None:
        """The pictures of a prompt, for which all is reserved; None if there are none. Raises as
        ``RequestImages.prepare`` does, with nothing reserved."""
        if not prompt.pictures:
            return None
        try:
            with tracing.stage("images"):
                return await images.prepare(prompt.places)
        except BaseException:
            await self._quota.release(hold)
            raise

    async def _prediction(
        self, request: GenerationRequest, model: Model, max_model_len: int
    ) -> list[int]:
        """The token ids of what the answer is expected to be. No more than the model's length can
        be of use. Raises ``ApiError``."""
        fields = request.fields
        if not isinstance(fields, ChatCompletionRequest) or fields.prediction is None:
            return []
        text = text_of(fields.prediction.content, "prediction.content")
        if not model.drafts_texts:
            return []
        text = text[: max_model_len * _PREDICTED_CHARS]
        read = partial(model.tokenizer.encode, text, add_special_tokens=False)
        tenant = request.principal.tenant.id
        found = await self.prompt_threads.run(read, tenant=tenant, size=len(text))
        return found[:max_model_len]

    def _check_serving(self) -> None:
        self._check_not_draining()
        if not self._ledger.has_room:
            raise Overloaded("Usage cannot be recorded at the moment.", retry_after_s=5)

    def _check_not_draining(self) -> None:
        if self.draining:
            raise Draining("The server is shutting down.", retry_after_s=1)

    async def _wait_for_engine(self, model: Model, principal: Principal) -> None:
        if (cold_start := self._cold_starts.get(model.name)) is not None:
            await cold_start.wait(principal.tenant.id.hex)
            self._check_not_draining()

    async def _reserve(
        self,
        request: GenerationRequest | PooledRequest,
        served: ServedModel,
        *,
        prompt_tokens: int,
        max_tokens: int,
    ) -> Hold:
        """Reserve the prompt's tokens, and the first slice of the answer's.

        Raises ``QuotaExceeded`` or ``StoreUnavailable``; ``AuthenticationFailed`` or ``Draining``
        if the key was revoked, or the server began to shut down, while the request waited.
        """
        try:
            hold = await self._quota.reserve(
                request.principal,
                request_id=request.id,
                model=served.name,
                prompt_tokens=prompt_tokens,
                max_tokens=max_tokens,
                price=served.base.price,
                endpoint=context.endpoint(),
            )
        except QuotaExceeded:
            self._check_not_draining()  # The queue of waiting requests may have been closed.
            raise
        try:
            # A revocation ends running requests only, so this one must look for itself.
            await self._authenticator.check(request.principal.key.public_id)
            self._check_not_draining()
        except BaseException:
            await self._quota.release(hold)
            raise
        return hold

    async def _tools(self, request: GenerationRequest, model: Model) -> ToolUse | None:
        fields = request.fields
        if isinstance(fields, CompletionRequest):
            return None
        if not fields.tools:
            return model.tools.read(fields)
        # In a thread, because a request may have megabytes of schemas.
        read = partial(model.tools.read, fields)
        return await self.prompt_threads.run(read, tenant=request.principal.tenant.id, size=0)

    async def _prompt(
        self, request: GenerationRequest, use: ToolUse | None, model: Model, max_model_len: int
    ) -> Prompt:
        fields, tenant = request.fields, request.principal.tenant.id
        if isinstance(fields, ChatFields):
            return await model.prompts.encode(
                fields.messages,
                tenant=tenant,
                max_model_len=max_model_len,
                tools=None if use is None else use.for_template(),
                kwargs=model.prompts.kwargs(fields),
                ending=Ending.of(fields),
            )
        return await texts.read(
            fields,
            model.tokenizer,
            self.prompt_threads,
            tenant=tenant,
            max_model_len=max_model_len,
        )

    async def check(self, spec: GrammarSpec, tenant: UUID, model: Model) -> Verdict:
        """Whether a grammar can be used with a model, and what of it cannot be enforced, at its
        tenant's turn. Raises ``GrammarError``."""
        return await self._grammar_lanes.run(tenant, lambda: model.compiler.submit(spec))

    async def _compile(
        self,
        output: OutputFormat | None,
        request: GenerationRequest,
        use: ToolUse | None,
        model: Model,
    ) -> tuple[Finding, ...]:
        """Compile a format, and return what of it cannot be enforced. The engine will compile it
        again; here it is done so that a bad schema is a 400, and not a stream that fails."""
        if output is None:
            return ()
        try:
            verdict = await self.check(output.spec, request.principal.tenant.id, model)
        except CompilerUnavailable:
            raise
        except GrammarError as error:
            if use is not None:
                raise tool_use.refusal(error, use.callable) from None
            raise output_format.refusal(error, output.param) from None
        return verdict.unenforced


def _ignored(request: GenerationRequest, tier: str | None, model: Model) -> list[str]:
    """The fields that change nothing, in the client's words."""
    fields, found = request.fields, []
    if isinstance(fields, ChatCompletionRequest):
        found = ["prediction"] * (fields.prediction is not None and not model.drafts_texts)
    if isinstance(fields, ChatFields):
        found += model.prompts.ignored(fields)
        if fields.service_tier not in (None, "auto", tier):
            found.append("service_tier")
        if fields.safety_identifier is not None and fields.user not in (
            None,
            fields.safety_identifier,
        ):
            found.append("user")
    name = request.client_name
    return found if name is None else [*map(name, found)]


def _output(
    fields: ChatFields | CompletionRequest, use: ToolUse | None, model: Model
) -> OutputFormat | None:
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
    spec = model.tools.grammar(use, answer)
    return None if spec is None else OutputFormat(spec, "tools", answer)


def _end_of_reasoning(prompt: Prompt, use: ToolUse | None, model: Model) -> tuple[int, ...]:
    """The token ids after which a format applies; none if it applies from the start."""
    if model.reasoning is None or not prompt.is_chat or prompt.ends_reasoning:
        return ()
    end = model.reasoning.before_answer if use is None else model.reasoning.before_calls
    return tuple(model.tokenizer.encode(end, add_special_tokens=False))


def _parser_maker(
    fields: ChatFields | CompletionRequest, use: ToolUse | None, prompt: Prompt, model: Model
) -> Callable[[], AnswerParser] | None:
    if isinstance(fields, CompletionRequest) or (use is None and model.reasoning is None):
        return None
    hides_reasoning = fields.include_reasoning is False
    make_tools = None if use is None else model.tools.make_parser(use)

    def make() -> AnswerParser:
        format = model.reasoning
        return AnswerParser(
            reasoning=None if format is None else format.make_parser(prompt.begins_reasoning),
            hides_reasoning=hides_reasoning,
            tools=None if make_tools is None else make_tools(),
            max_calls=None if use is None or use.is_parallel else 1,
        )

    return make


def _has_special_marks(use: ToolUse | None, model: Model) -> bool:
    """Whether the marks of reasoning or calls are special tokens, which the parser must
    see."""
    marks = () if model.reasoning is None else model.reasoning.marks
    if use is not None and model.tools.format is not None:
        marks += model.tools.format.marks
    return any(map(model.tools.is_special, marks))


def _max_tokens(
    request: GenerationRequest, prompt: Prompt, model: Model, max_model_len: int
) -> int:
    """The most new tokens of each answer. Raises ``InvalidRequestError``."""
    fields = request.fields
    longest = max(map(len, prompt.token_ids))
    is_chat = isinstance(fields, ChatFields)
    room = field_checks.room(longest, max_model_len, param="messages" if is_chat else "prompt")
    name, wanted = "max_tokens", fields.max_tokens
    if isinstance(fields, ChatFields):
        if wanted is not None and fields.max_completion_tokens is not None:
            raise InvalidRequestError("Set max_completion_tokens or this, not both.", param=name)
        if wanted is None:
            name, wanted = "max_completion_tokens", fields.max_completion_tokens
    if wanted is None:
        return min(
            room, model.config.models.default_max_tokens or (room if is_chat else _TEXT_TOKENS)
        )
    if request.clips_max_tokens:
        return min(wanted, room)
    field_checks.check_fits(wanted, longest, max_model_len, param=name)
    return wanted


def _priority(principal: Principal, shift: int = 0) -> int:
    """Lines of batches are behind all others."""
    return principal.priority + shift if context.deferred.get() is None else IDLE_PRIORITY


def _unenforced(output: OutputFormat | None, findings: tuple[Finding, ...]) -> Unenforced | None:
    """What must be checked of a finished document; None if nothing."""
    if output is None or not findings:
        return None
    if output.answer is not None:
        found = tool_use.about_the_answer(findings)
        return Unenforced(output.answer, found) if found else None
    return Unenforced(output.spec, findings) if output.spec.kind == "json_schema" else None
