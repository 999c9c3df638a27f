"""Steps of a play as frames of the real gateway: `/v1/responses` with our extension, and `/v1/runs` (SURFACES 1)."""

import json
import time
from typing import Any

from worker.backends.demo.play import AskApproval, AskQuestion, Call, Fail, News, Plan, Return, Show, Step
from worker.backends.gateway import extension

MODEL = "demo-1"
KIND = "shell command"


class Usage:
    """Tokens by the rule of thumb of four characters each."""

    def __init__(self, prompt_chars: int) -> None:
        self.prompt_chars = prompt_chars
        self.answer_chars = 0

    def as_json(self) -> dict[str, int]:
        prompt, answer = 900 + self.prompt_chars // 4, max(1, self.answer_chars // 4)
        return {"input_tokens": prompt, "output_tokens": answer, "total_tokens": prompt + answer}


class ResponsesWire:
    """Frames of `POST /v1/responses`: `event: NAME`, `data: JSON`, numbered from 0."""

    def __init__(self, response_id: str, prompt_chars: int) -> None:
        self.id = response_id
        self.text = ""
        self._usage = Usage(prompt_chars)
        self._number = -1
        self._index = -1
        self._message_index: int | None = None
        self._calls: dict[str, tuple[str, str]] = {}  # call_id -> name, arguments
        self._items: list[dict[str, Any]] = []
        self._failed = False

    def begin(self) -> str:
        return self._frame("response.created", response=self._response("in_progress", []))

    def say(self, piece: str) -> str:
        head = ""
        if self._message_index is None:
            self._message_index = self._next_index()
            head = self._frame(
                "response.output_item.added", output_index=self._message_index, item=self._message("in_progress", [])
            )
        self.text += piece
        self._usage.answer_chars += len(piece)
        delta = self._frame(
            "response.output_text.delta",
            item_id=f"msg_{self.id}",
            output_index=self._message_index,
            content_index=0,
            delta=piece,
            logprobs=[],
        )
        return head + delta

    def think(self, piece: str) -> str:
        return self._frame(extension.REASONING_DELTA, delta=piece)

    def step(self, step: Step) -> str:
        match step:
            case Call(call_id, name, arguments):
                return self._call(call_id, name, json.dumps(arguments, ensure_ascii=False))
            case Return(call_id, result, _):
                return self._return(call_id, result)
            case News(call_id, text):
                return self._frame(extension.TOOL_PROGRESS, call_id=call_id, text=text)
            case Show(text):
                return self._frame(extension.STATUS, text=text)
            case Plan(todos):
                return self._frame(extension.TODOS, todos=todos)
            case AskApproval(approval_id, command, description):
                return self._frame(
                    extension.APPROVAL_REQUEST,
                    approval_id=approval_id,
                    kind=KIND,
                    command=command,
                    description=description,
                    choices=["once", "session", "always", "deny"],
                )
            case AskQuestion(clarify_id, question, choices):
                return self._frame(extension.CLARIFY_REQUEST, clarify_id=clarify_id, question=question, choices=choices)
            case Fail(message):
                self._failed = True  # told as the real gateway does: completed, the error as text, no usage
                return self.say(message)
        return ""

    def resolved(self, step: AskApproval | AskQuestion, answer: str | None) -> str:
        if isinstance(step, AskApproval):
            return self._frame(extension.APPROVAL_RESOLVED, approval_id=step.approval_id, choice=answer)
        return self._frame(extension.CLARIFY_RESOLVED, clarify_id=step.clarify_id, answer=answer)

    def end(self, status: str) -> str:
        frames = ""
        if self._message_index is not None:
            content = [{"type": "output_text", "text": self.text}]
            frames = self._frame(
                "response.output_text.done",
                item_id=f"msg_{self.id}",
                output_index=self._message_index,
                content_index=0,
                text=self.text,
                logprobs=[],
            ) + self._frame(
                "response.output_item.done",
                output_index=self._message_index,
                item=self._message("completed", content),
            )
        name = "response.incomplete" if status == "cancelled" else "response.completed"
        return frames + self._frame(name, response=self.final(status))

    def final(self, status: str) -> dict[str, Any]:
        """The whole response, as `GET /v1/responses/{id}` gives it too."""
        output = [_shortened(item) for item in self._items]
        if self.text:
            content = [{"type": "output_text", "text": self.text}]
            output.append({"type": "message", "role": "assistant", "content": content})
        told = {"cancelled": "incomplete", "failed": "completed"}.get(status, status)
        response = self._response(told, output)
        nothing = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
        response["usage"] = nothing if self._failed or status == "cancelled" else self._usage.as_json()
        return response

    def _call(self, call_id: str, name: str, arguments: str) -> str:
        self._calls[call_id] = (name, arguments)
        self._items.append({"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id})
        item = self._call_item(call_id, "in_progress")
        return self._frame("response.output_item.added", output_index=self._next_index(), item=item)

    def _return(self, call_id: str, result: str) -> str:
        output = [{"type": "input_text", "text": result}]
        self._items.append({"type": "function_call_output", "call_id": call_id, "output": output})
        item = {
            "id": f"fco_{call_id}",
            "type": "function_call_output",
            "call_id": call_id,
            "output": output,
            "status": "completed",
        }
        index = self._next_index()
        return (
            self._frame("response.output_item.done", output_index=index, item=self._call_item(call_id, "completed"))
            + self._frame("response.output_item.added", output_index=index, item=item)
            + self._frame("response.output_item.done", output_index=index, item=item)
        )

    def _call_item(self, call_id: str, status: str) -> dict[str, Any]:
        name, arguments = self._calls[call_id]
        return {
            "id": f"fc_{call_id}",
            "type": "function_call",
            "status": status,
            "name": name,
            "call_id": call_id,
            "arguments": arguments,
        }

    def _message(self, status: str, content: list[dict[str, str]]) -> dict[str, Any]:
        return {"id": f"msg_{self.id}", "type": "message", "status": status, "role": "assistant", "content": content}

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "status": status,
            "created_at": int(time.time()),
            "model": MODEL,
            "output": output,
        }

    def _next_index(self) -> int:
        self._index += 1
        return self._index

    def _frame(self, name: str, **fields: Any) -> str:
        self._number += 1
        data = json.dumps({"type": name, **fields, "sequence_number": self._number})
        return f"event: {name}\ndata: {data}\n\n"


def _shortened(item: dict[str, Any]) -> dict[str, Any]:
    """A tool's output in the final frame: cut to 500 characters when over 1,000, as the real gateway does."""
    if item["type"] != "function_call_output" or len(item["output"][0]["text"]) <= 1000:
        return item
    text = item["output"][0]["text"][:500] + "... [output truncated]"
    return {**item, "output": [{"type": "input_text", "text": text}]}


class RunsWire:
    """Events of `GET /v1/runs/{id}/events`: `data:` lines only, the type in `event`; no reasoning, no tool results."""

    def __init__(self, run_id: str, prompt_chars: int) -> None:
        self.id = run_id
        self.text = ""
        self.last_event = "run.started"
        self._usage = Usage(prompt_chars)
        self._names: dict[str, tuple[str, float]] = {}
        self._failure: str | None = None

    def begin(self) -> str:
        return ""

    def say(self, piece: str) -> str:
        self.text += piece
        self._usage.answer_chars += len(piece)
        return self._frame("message.delta", delta=piece)

    def think(self, piece: str) -> str:
        return ""

    def step(self, step: Step) -> str:
        match step:
            case Call(call_id, name, arguments):
                self._names[call_id] = (name, time.monotonic())
                preview = next((str(value) for value in arguments.values()), "")
                return self._frame("tool.started", tool=name, preview=preview[:80])
            case Return(call_id, _, ok):
                name, began = self._names[call_id]
                took = round(time.monotonic() - began, 3)
                return self._frame("tool.completed", tool=name, duration=took, error=not ok)
            case AskApproval(_, command, description):
                return self._frame(
                    "approval.request",
                    command=command,
                    description=description,
                    pattern_key=KIND,
                    pattern_keys=[KIND],
                    allow_permanent=True,
                    choices=["once", "session", "always", "deny"],
                )
            case Fail(message):
                self._failure = message
        return ""

    def resolved(self, step: AskApproval | AskQuestion, answer: str | None) -> str:
        if isinstance(step, AskQuestion):
            return ""
        return self._frame("approval.responded", choice=answer, resolved=1)

    def end(self, status: str) -> str:
        if status == "cancelled":
            frame = self._frame("run.cancelled")
        elif self._failure is not None:
            frame = self._frame("run.failed", error=self._failure)
        else:
            frame = self._frame("run.completed", output=self.text, usage=self._usage.as_json())
        return frame + ": stream closed\n\n"

    def state(self, status: str) -> dict[str, Any]:
        """The answer of `GET /v1/runs/{id}`."""
        facts: dict[str, Any] = {
            "object": "hermes.run",
            "run_id": self.id,
            "status": status,
            "model": MODEL,
            "last_event": self.last_event,
        }
        if status == "completed":
            facts |= {"output": self.text, "usage": self._usage.as_json()}
        if self._failure is not None:
            facts["error"] = self._failure
        return facts

    def _frame(self, name: str, **fields: Any) -> str:
        self.last_event = name
        return f"data: {json.dumps({'event': name, 'run_id': self.id, 'timestamp': time.time(), **fields})}\n\n"
