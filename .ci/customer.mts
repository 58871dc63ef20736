// What an integrator writes against the installed client: `.ci/run` checks its types and runs it where there is no agent.
import { AgentUnreachable, type AgentClient, connect } from '@tallygate/client'

const agent: AgentClient = connect({ socket: '/nowhere/agent.sock', patienceMs: 100 })

async function ask(): Promise<boolean> {
  await using session = await agent.openSession({ instanceId: '64d2028c-ae87-4069-a624-66089d957ef9' })
  const { granted } = await session.request({ type: 'user', value: 'anna' }, [{ item: 'LaserCut', count: 1 }])
  return granted
}

console.log(await ask().catch((error: unknown) => (error instanceof AgentUnreachable ? error.code : error)))
