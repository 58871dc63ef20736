// A journal's desk without its thread: calls are answered in later turns of whoever opened the journal. For tests that
// open so many journals that most of their time would go into starting threads.
import { JournalDesk } from '../../src/agent/adapters/sqlite/journal-desk.ts'
import type { StartThread } from '../../src/agent/adapters/sqlite/journal.ts'
import { openOrRescue } from '../../src/agent/adapters/sqlite/rescue.ts'
import { Slack } from '../../src/agent/adapters/sqlite/slack.ts'
import { BEGIN } from './link/fake-time.ts'

export const sameThread: StartThread = ({ path, limits, later, left }, events) => {
  const slackPath = `${path}-slack`
  const desk = new JournalDesk({
    path,
    open: () => openOrRescue(path, limits, [...later, slackPath], () => BEGIN, left),
    slack: new Slack(slackPath, limits.slackPages),
  })
  return {
    post: (call) => {
      // Copied as between threads.
      const sent = structuredClone(call)
      setImmediate(() => {
        events.onAnswer(structuredClone(desk.answerTo(sent)))
        if (sent.call === 'close') events.onEnd()
        else desk.answered()
      })
    },
    terminate: () => setImmediate(() => events.onEnd()),
  }
}
