// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// The variants of iptables: one keeps its rules in nftables, one in tables of its own.
const (
	iptablesNFT    = "nft"
	iptablesLegacy = "legacy"
)

// The prefixes of chains of iptables. Rules of the kernel's chains are in chains of ours, to which
// one rule jumps, so that they are found again.
const (
	chainPrefixIstio = "ISTIO_"
	chainPrefixOwn   = "OUTRIGGER_"
)

// restoreIPTables replaces what earlier runs, of this program or of istio-iptables, left in a variant
// of iptables by the rules, each table in one transaction. Without rules it only removes.
func restoreIPTables(ctx context.Context, variant string, families []Family) error {
	var missing error
	done := false
	for _, six := range []bool{false, true} {
		f := Family{Six: six}
		for _, given := range families {
			if given.Six == six {
				f = given
			}
		}
		save, err := findIPTables(ctx, variant, f.program(), "save")
		if err != nil {
			if missing = err; len(f.Rules) > 0 {
				return err
			}
			continue
		}
		done = true
		restore, err := findIPTables(ctx, variant, f.program(), "restore")
		if err != nil {
			return err
		}
		saved, err := output(ctx, "", save)
		if err != nil {
			return err
		}
		if input := f.replaceInput(saved); input != "" {
			if _, err := output(ctx, input, restore, "--noflush", "--wait=10"); err != nil {
				return err
			}
		}
	}
	if !done {
		return missing
	}
	return nil
}

// findIPTables returns the name of a program of a variant.
func findIPTables(ctx context.Context, variant, program, action string) (string, error) {
	name := program + "-" + variant + "-" + action
	if _, err := exec.LookPath(name); err == nil {
		return name, nil
	}
	// Without several variants, the programs have plain names and say in their version what they are.
	plain := program + "-" + action
	if _, err := exec.LookPath(plain); err == nil {
		version, err := output(ctx, "", plain, "--version")
		if err == nil && strings.Contains(version, "nf_tables") == (variant == iptablesNFT) {
			return plain, nil
		}
	}
	return "", fmt.Errorf("%s is not in PATH: install iptables, or use nftables", name)
}

// commandTimeout limits one run of iptables. Other runs may hold its lock for some time.
const commandTimeout = 30 * time.Second

// maxReason is how many bytes of its messages an error shows.
const maxReason = 500

// output runs a program and returns what it writes.
func output(ctx context.Context, input, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.Output()
	if err == nil {
		return string(out), nil
	}
	reason := ""
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		reason = strings.TrimSpace(string(exit.Stderr[:min(len(exit.Stderr), maxReason)]))
	}
	return "", fmt.Errorf("running %s: %w: %s", strings.Join(append([]string{name}, args...), " "), err, strings.ReplaceAll(reason, "\n", "; "))
}

// replaceInput returns the input of iptables-restore --noflush that removes from saved, the output of
// iptables-save, what earlier runs left, and adds the rules.
func (f Family) replaceInput(saved string) string {
	old := parseSaved(saved)
	var out strings.Builder
	for _, table := range []string{tableRaw, tableMangle, tableNAT} {
		rules := inOwnChains(f.of(table))
		if len(rules) == 0 && len(old[table].chains)+len(old[table].rules) == 0 {
			continue
		}
		chains := ownChains(rules)
		fmt.Fprintf(&out, "*%s\n", table)
		for _, chain := range slices.Concat(chains, old[table].chains) {
			fmt.Fprintf(&out, ":%s - [0:0]\n", chain) // creates the chain, or empties it
		}
		for _, rule := range old[table].rules {
			fmt.Fprintf(&out, "-D %s\n", strings.TrimPrefix(rule, "-A "))
		}
		for _, r := range rules {
			fmt.Fprintln(&out, strings.Join(r.args(), " "))
		}
		for _, chain := range old[table].chains {
			if !slices.Contains(chains, chain) {
				fmt.Fprintf(&out, "-X %s\n", chain)
			}
		}
		fmt.Fprintln(&out, "COMMIT")
	}
	return out.String()
}

// inOwnChains moves the rules of the kernel's chains to chains of ours.
func inOwnChains(rules []Rule) (moved []Rule) {
	var jumps []string
	for _, r := range rules {
		if isBuiltin(r.chain) {
			own := chainPrefixOwn + r.chain
			if !slices.Contains(jumps, r.chain) {
				jumps = append(jumps, r.chain)
				moved = append(moved, Rule{r.table, r.chain, match{}, jump(own)})
			}
			r.chain = own
		}
		moved = append(moved, r)
	}
	return moved
}

// savedTable is what earlier runs left in a table: chains, and rules in chains of the kernel.
type savedTable struct{ chains, rules []string }

// parseSaved finds what earlier runs left in the output of iptables-save.
func parseSaved(saved string) map[string]savedTable {
	tables := map[string]savedTable{}
	table := ""
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		found := tables[table]
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
			continue
		case strings.HasPrefix(line, ":"):
			if name, _, _ := strings.Cut(line[1:], " "); isLeftChain(name) {
				found.chains = append(found.chains, name)
			}
		case isLeftRule(line):
			found.rules = append(found.rules, line)
		}
		tables[table] = found
	}
	return tables
}

func isLeftChain(name string) bool {
	return strings.HasPrefix(name, chainPrefixIstio) || strings.HasPrefix(name, chainPrefixOwn)
}

// isLeftRule reports whether a rule of one of the kernel's chains was made by istio-iptables or by
// this program: it jumps to a chain of theirs, or contains one of the sets of words that only their
// rules have.
func isLeftRule(line string) bool {
	if !strings.HasPrefix(line, "-A "+chainPrerouting+" ") && !strings.HasPrefix(line, "-A "+chainOutput+" ") {
		return false
	}
	words := strings.Fields(line)
	if i := slices.Index(words, "-j"); i >= 0 && i+1 < len(words) && isLeftChain(words[i+1]) {
		return true
	}
	for _, set := range [][]string{
		{"--dport", "53", "REDIRECT", "--to-ports", "15053"},
		{"-p", "udp", "--dport", "53", "owner", "RETURN"},
		{"-p", "udp", "53", "CT", "--zone"},
		{"-p", "udp", "--sport", "15053", "CT", "--zone"},
		{"CONNMARK", "0x539"},
		{"-o", "lo", "mark", "0x539", "RETURN"},
		{"-o", "lo", "owner", "0x53a/0xffffffff"},
	} {
		if !slices.ContainsFunc(set, func(word string) bool { return !slices.Contains(words, word) }) {
			return true
		}
	}
	return false
}
