// Applications that are prepared for no failure: `node load.ts SOCKET INSTANCE FILE CALLERS`, until FILE is there. Half of them keep
// their connection, half open one for each call. Prints one JSON document: calls answered, calls failed and how, slowest in ms.
import { existsSync } from 'node:fs'
import { Agent, request } from 'node:http'

const [socketPath = '', instance = '', until = '', callers = '4'] = process.argv.slice(2)
const body = JSON.stringify({
  requester: { type: 'user', value: 'anna' },
  requestedItems: [{ item: 'LaserCut', version: '1.0', count: 1 }],
})
const seen = { answered: 0, failed: 0, slowestMs: 0, failures: {} as Record<string, number> }

function call(agent: Agent | false): Promise<string> {
  return new Promise((resolve) => {
    const path = `/elastic/api/v1.1/instances/${instance}/access-request`
    const headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) }
    const asked = request({ socketPath, method: 'POST', path, headers, agent }, (response) => {
      let text = ''
      response.setEncoding('utf8').on('data', (chunk: string) => (text += chunk))
      response.once('end', () => resolve(response.statusCode === 200 ? 'ok' : `${response.statusCode ?? 0} ${text}`))
      response.once('error', (error) => resolve(error.message))
    })
    asked.once('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message))
    asked.end(body)
  })
}

async function caller(keepsConnection: boolean): Promise<void> {
  const agent = keepsConnection ? new Agent({ keepAlive: true, maxSockets: 1 }) : false
  while (!existsSync(until)) {
    const begun = performance.now()
    const outcome = await call(agent)
    seen.slowestMs = Math.max(seen.slowestMs, Math.round(performance.now() - begun))
    if (outcome === 'ok') seen.answered += 1
    else {
      seen.failed += 1
      seen.failures[outcome] = (seen.failures[outcome] ?? 0) + 1
    }
  }
  if (agent !== false) agent.destroy()
}

await Promise.all(Array.from({ length: Number(callers) }, (_, index) => caller(index % 2 === 0)))
console.log(JSON.stringify(seen))
