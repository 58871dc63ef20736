import { CodedError } from '../protocol/errors.ts'

/** Inputs from the process that runs the service. */
export interface ServiceProcess<S> {
  /** Reads all sources of the settings. @throws CodedError */
  readonly load: () => S
  readonly stop: AbortSignal
  readonly onReload: (listener: () => void) => void
}

export interface Service<S> {
  /** Resolves after {@link Service.stop}. Rejects after cleanup if the service had to end by itself, with the reason. */
  readonly ended: Promise<void>
  /** On any error, all settings keep their values, and the service reports it. @param load reads them. @throws CodedError */
  reload(load: () => S): void
  /** Refuses new requests, finishes those in progress, and ends. Idempotent. */
  stop(): Promise<void>
}

/**
 * Runs the service until the signal aborts, then drains it. A reload during the start takes effect after it.
 * @throws CodedError if the service cannot start, or had to end by itself
 */
export async function runService<S>(
  { load, stop, onReload }: ServiceProcess<S>,
  start: (settings: S) => Promise<Service<S>>,
): Promise<void> {
  const serving = Promise.withResolvers<Service<S>>()
  onReload(() => void serving.promise.then((service) => service.reload(load)))
  const service = await startedUnlessStopped(() => start(load()), stop)
  if (service === null) return
  serving.resolve(service)
  const drain = (): void => void service.stop()
  if (stop.aborted) drain()
  else stop.addEventListener('abort', drain, { once: true })
  await service.ended
}

/** Null: stopped before it served, so that there is nothing to release. */
async function startedUnlessStopped<T>(start: () => Promise<T>, stop: AbortSignal): Promise<T | null> {
  try {
    return await start()
  } catch (error) {
    if (stop.aborted && error instanceof CodedError && error.code === 'STOPPING') return null
    throw error
  }
}
