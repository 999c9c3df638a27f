"""The words of the demo agent, in English and in Chinese."""

from dataclasses import dataclass
from typing import Any

TOOLS: tuple[tuple[str, dict[str, Any], float, str], ...] = (
    ("read_file", {"path": "reports/2026-10.csv"}, 0.5, "day,invoices\n2026-10-04,18204\n2026-10-18,17950\n"),
    ("terminal", {"command": "pytest -q tests/export"}, 1.2, "48 passed, 1 skipped in 20.97s"),
    (
        "search_files",
        {"pattern": "issued_at", "path": "jobs/"},
        0.4,
        "jobs/export/daily.py:42\njobs/export/daily.py:57",
    ),
)

CODE = '''```python
from datetime import datetime, timezone

def bounds(day: str) -> tuple[datetime, datetime]:
    """The half-open interval of a day in UTC."""
    start = datetime.fromisoformat(day).replace(tzinfo=timezone.utc)
    return start, start.replace(hour=23, minute=59, second=59)
```'''

TABLE_ROWS = """| 2026-10-04 | 18,204 | 18,197 | −7 |
| 2026-10-18 | 17,950 | 17,957 | +7 |
| 2026-10-31 | 22,611 | 22,604 | −7 |"""


@dataclass(frozen=True)
class Texts:
    welcome: str
    plain_thought: str
    remembers: str
    thinking_status: str
    long_thought: str
    after_thought: str
    no_questions: str
    before_question: str
    question: str
    question_choices: tuple[str, ...]
    answered: str
    unanswered: str
    approval_thought: str
    before_approval: str
    approval_reason: str
    denied: str
    approved: str
    choices: dict[str, str]
    before_tools: str
    after_tools: str
    before_parallel: str
    reading: str
    after_parallel: str
    before_todos: str
    todos: tuple[str, ...]
    after_todos: str
    long_answer: str
    slow_status: str
    slow_answer: str
    before_huge: str
    after_huge: str
    paragraph: str
    tour: str


ENGLISH = Texts(
    welcome="""I am the **demo agent** of Hermes Portal. No model stands behind me: I play what this page can show, so \
that you can try it before you connect a real agent.

Every turn you send is a run in a queue. It goes on when you close the browser, and any tab can come back to it. \
Try one of these:

- *show me a long answer* with code and a table
- *use some tools*, or *use tools at the same time*
- *make a to-do list*
- *ask me a question*
- *do something that needs approval*
- *think first*, *answer slowly*, *fail with an error*, *a 5 MB tool output*
- *show me everything*

To talk to a real agent, set `HERMES_GATEWAY_URL` and `HERMES_GATEWAY_KEY` to your Hermes gateway and start the portal \
again:

```sh
HERMES_GATEWAY_URL=http://127.0.0.1:8642 HERMES_GATEWAY_KEY=… portal up
```

Or install Hermes for the user that runs the portal, and run `hermes setup`: new chats then go to it, without a \
gateway.""",
    plain_thought="Somebody new. A short word on what I am, then the list of what to try.",
    remembers="You said “{now}”. Before it I was given {count} earlier message(s) of this session from the portal's own "
    "database, the last one being “{last}”. Say *help* to see what I can play.",
    thinking_status="Thinking it through",
    long_thought="The totals differ on three days only. All three have invoices that were voided shortly after midnight "
    "UTC. The old job counts by day of issue; the warehouse by day of change. So the fix is the filter, not the data. "
    "Let me check that the month's sum is the same on both sides before I say so: it is.",
    after_thought="The two systems agree on the month and differ on **three days**. The cause is the filter: one counts "
    "by day of issue, the other by day of change.",
    no_questions="I would ask you something, but this endpoint of the gateway has no way to ask.",
    before_question="Before I go on I need to know one thing.",
    question="Which day should count for an invoice that was voided after midnight?",
    question_choices=("The day of issue", "The day of the change", "Leave both in the report"),
    answered="Thank you. I go on with: **{answer}**.",
    unanswered="There was no answer in time, so I leave both in the report.",
    approval_thought="The reports folder must be made anew. That deletes files, so I have to ask first.",
    before_approval="I would like to build the October report anew.",
    approval_reason="deletes files below the working directory",
    denied="The command was not run, so the old report stays as it was.",
    approved="Done ({choice}): the October report is new.",
    choices={"once": "allowed once", "session": "allowed for this session", "always": "always allowed"},
    before_tools="I look at the data first, then run the tests.",
    after_tools="The file has two suspicious days, the tests pass, and the filter stands in `jobs/export/daily.py`.",
    before_parallel="Three things that do not depend on each other: I start them at the same time.",
    reading="working",
    after_parallel="All three are back; they finished in another order than they began.",
    before_todos="I make a plan and work it off.",
    todos=("Read the list of voided numbers", "Run the export tests", "Dry run of the back-fill", "Report the counts"),
    after_todos="All four points are done.",
    long_answer=f"""## Where the counts differ

Both sides agree on 28 of 31 days. The three days that differ all hold invoices that were **voided after midnight \
UTC**.

| Day | legacy | warehouse | difference |
|---|---:|---:|---:|
{TABLE_ROWS}

### How it was counted

The same snapshot on both sides, no sampling. The bounds of a day come from this function:

{CODE}

1. Both queries read the snapshot of 13:30 UTC.
2. Rows without a number are left out:
   - drafts,
   - test invoices of the sandbox tenant.
3. The sums of the month are equal.

> A filter by `changed_at` moves seven invoices from one day to the next. Nothing is lost, but no day can be compared.

Next I would change the filter to `issued_at` and run the export tests again. See \
[the notes on time zones](https://example.com/time-zones) for the reasons.""",
    slow_status="Waiting for a slow model",
    slow_answer="This answer comes one word at a time, so that you can close the page, come back, and see that nothing "
    "is missing and nothing is there twice. You can also press Stop.",
    before_huge="I print the whole access log.",
    after_huge="That was 5 MB. The page shows the beginning; the whole output can be downloaded.",
    paragraph="The half-open interval keeps a void after midnight on its own day, and **the totals agree** again; see "
    "`jobs/export/daily.py` for the filter and the tests beside it.",
    tour="I show everything, one after the other. It takes about half a minute, and I will ask you twice.",
)

CHINESE = Texts(
    welcome="""我是 Hermes Portal 的**演示智能体**。我背后没有模型：我只演示这个页面能显示的内容，方便你在接入真正的智能体之前先试用。

你发送的每一轮都是队列中的一次运行。关闭浏览器后它会继续，任何标签页都能随时回来接着看。可以试试：

- *给我一个长回答*，带代码和表格
- *使用工具*，或 *同时使用几个工具*
- *列一个待办*
- *问我一个问题*
- *做一件需要审批的事*
- *先思考*、*慢慢回答*、*出错*、*大输出*
- *全部演示一遍*

要接入真正的智能体，请把 `HERMES_GATEWAY_URL` 和 `HERMES_GATEWAY_KEY` 设为你的 Hermes 网关，然后重新启动：

```sh
HERMES_GATEWAY_URL=http://127.0.0.1:8642 HERMES_GATEWAY_KEY=… portal up
```

也可以为运行门户的用户安装 Hermes 并运行 `hermes setup`：之后的新会话直接由它回答，不需要网关。""",
    plain_thought="来了一位新用户。先简单说明我是谁，再列出可以试的内容。",
    remembers="你说的是“{now}”。门户从自己的数据库里给了我本会话之前的 {count} 条消息，最后一条是“{last}”。输入 *帮助* 可以看到我能演示什么。",
    thinking_status="正在思考",
    long_thought="只有三天的合计不同。这三天都有在 UTC 午夜之后作废的发票。旧任务按开票日统计，数据仓库按变更日统计。"
    "所以要改的是筛选条件，而不是数据。先确认两边的月合计一致：一致。",
    after_thought="两个系统的月合计一致，只有**三天**不同。原因是筛选条件：一个按开票日，一个按变更日。",
    no_questions="我本想问你一个问题，但网关的这个接口无法提问。",
    before_question="继续之前，我需要确认一件事。",
    question="午夜之后作废的发票，应该算在哪一天？",
    question_choices=("开票日", "变更日", "两种都写进报告"),
    answered="谢谢。我按这个继续：**{answer}**。",
    unanswered="没有及时得到回答，所以两种都写进报告。",
    approval_thought="报告目录需要重新生成。这会删除文件，所以必须先问。",
    before_approval="我想重新生成十月的报告。",
    approval_reason="会删除工作目录下的文件",
    denied="命令没有执行，旧报告保持不变。",
    approved="完成（{choice}）：十月的报告已更新。",
    choices={"once": "允许一次", "session": "本会话内允许", "always": "始终允许"},
    before_tools="我先看数据，再跑测试。",
    after_tools="文件里有两天可疑，测试通过，筛选条件在 `jobs/export/daily.py`。",
    before_parallel="三件互不依赖的事：我同时开始。",
    reading="进行中",
    after_parallel="三个都回来了；完成的顺序和开始的顺序不同。",
    before_todos="我先列计划，再逐项完成。",
    todos=("读取作废号码清单", "运行导出测试", "回填试运行", "汇报数量"),
    after_todos="四项全部完成。",
    long_answer=f"""## 数量不同的地方

两边在 31 天中有 28 天一致。不同的三天都有在 UTC **午夜之后作废**的发票。

| 日期 | 旧系统 | 数据仓库 | 差异 |
|---|---:|---:|---:|
{TABLE_ROWS}

### 统计方法

两边使用同一份快照，没有抽样。一天的边界由这个函数给出：

{CODE}

1. 两个查询都读取 13:30 UTC 的快照。
2. 没有号码的行不计：
   - 草稿，
   - 沙箱租户的测试发票。
3. 月合计相等。

> 按 `changed_at` 筛选会把七张发票移到第二天。没有丢失，但任何一天都无法比较。

下一步我会把筛选条件改为 `issued_at`，再跑一遍导出测试。""",
    slow_status="正在等待一个很慢的模型",
    slow_answer="这个回答一次只来几个字，你可以关闭页面再回来，看看是否没有缺失，也没有重复。你也可以按停止。",
    before_huge="我打印整个访问日志。",
    after_huge="一共 5 MB。页面只显示开头，完整输出可以下载。",
    paragraph="半开区间让午夜之后的作废留在它自己的那一天，**合计重新一致**；筛选条件见 `jobs/export/daily.py`。",
    tour="我把全部内容依次演示一遍，大约半分钟，中间会问你两次。",
)
