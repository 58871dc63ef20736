/** The agent states its engine with each policy request, the cloud states its engine in each policy. */
import { z } from 'zod'
import { type Engine, outdatedSide } from '../../core/engine.ts'
import { CodedError } from '../errors.ts'

export const ENGINE_MAX = 1_000_000

export const engineVersion = z.int().min(1).max(ENGINE_MAX)

export const engineQuery = (agent: Engine): string => `engine=${agent.version}&oldestEngine=${agent.oldest}`

/** @throws CodedError AGENT_ENGINE_OLD or CLOUD_ENGINE_OLD */
export function requireEnginesFit(agent: Engine, cloud: Engine): void {
  const outdated = outdatedSide(agent, cloud)
  if (outdated === null) return
  const details = { agent: agent.version, cloud: cloud.version }
  if (outdated === 'AGENT') {
    const message = `The agent decides with engine ${agent.version}. The rules of the cloud are for engine ${cloud.oldest} or later. Upgrade the agent.`
    throw new CodedError('AGENT_ENGINE_OLD', message, { details: { ...details, needed: cloud.oldest } })
  }
  const message = `The rules are for engine ${cloud.version}. The agent decides with engine ${agent.version} and needs rules for engine ${agent.oldest} or later. Upgrade the cloud.`
  throw new CodedError('CLOUD_ENGINE_OLD', message, { details: { ...details, needed: agent.oldest } })
}
