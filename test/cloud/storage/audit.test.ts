import { expect, it } from 'vitest'
import { identityOf, nameOf } from '../../../src/cloud/storage/audit.ts'

const key = { kind: 'ADMINISTRATOR', keyId: 'k1', name: 'Ada', issuer: null } as const
const person = { ...key, keyId: '248', issuer: 'https://login.example' }

it('names a key by its name, and a person also by the subject, which the person cannot choose', () => {
  expect(nameOf(key)).toBe('Ada')
  expect(nameOf({ ...key, name: null })).toBe('k1')
  expect(nameOf(person)).toBe('Ada (248)')
  expect(nameOf({ ...person, name: null })).toBe('248')
  expect(identityOf(person)).toBe('https://login.example#248')
})
