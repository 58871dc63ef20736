import type { SocketOptions } from '../../../../src/agent/platform/socket/server.ts'

/** For a socket that is asked for nothing but access. */
export const ONLY_ACCESS = {
  sessions: {} as SocketOptions['sessions'],
  status: () => ({ version: '0.0.0' }) as ReturnType<SocketOptions['status']>,
  offers: () => ({ instances: [] }),
  inspection: { decision: async () => null, log: () => '', refused: () => '5b0b7f1c-3c1e-4d0a-9d6f-0d4b8a0c7e11' },
  rotateKey: async () => Promise.reject(new Error('no key')),
  cloudAddress: () => null,
} satisfies Partial<SocketOptions>
