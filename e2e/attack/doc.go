// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command attack attacks the programs of this repository and prints a table:
// what each attack tries, what is promised, what happened, and whether the
// promise held. `make attack` builds the programs, runs it and writes a list
// into docs/operations/security.md. It exits with 1 if a promise was broken.
//
// It starts the real programs and a real Envoy as processes of their own, on
// random addresses of 127.0.0.0/8 and in a temporary directory, in a network
// namespace of its own where it may make one. All attackers are this program. No attack
// depends on how fast the machine is: a promise is about what is refused, what
// is disclosed, how much memory is held, how much is logged, and whether others
// are served meanwhile.
//
// suite.go lists the attacks by area; each area has a file of its own.
// attack_test.go runs the short form, with smaller loads, as part of the tests.
package main
