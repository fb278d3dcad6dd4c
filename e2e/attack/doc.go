// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command attack attacks the programs of this repository and prints a table: what each attack
// tries, what is promised, what was observed, and whether the promise held. `make attack` builds
// the programs, runs it and writes a list to docs/operations/security.md. It exits with 1 if a
// promise was broken.
//
// It starts the real programs and a real Envoy as separate processes, on random addresses in
// 127.0.0.0/8 and in a temporary directory, in its own network namespace if possible. This program
// plays all attackers. No attack depends on the speed of the machine: promises concern what is
// rejected, what is disclosed, how much memory is used, how much is logged, and whether other
// clients are served meanwhile.
//
// suite.go lists the attacks by area; each area has its own file. attack_test.go runs a short
// version with smaller loads as a test.
package main
