// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// identity measures keys and certificates with the benchmarks of their
// packages, which bring what they are compared with.
func (b *bench) identity(ctx context.Context) ([]figure, error) {
	b.say("identity: secrets of the agent")
	secrets, err := goBench(ctx, "./sds", "FirstSecret|Push", "50x")
	if err != nil {
		return nil, err
	}
	b.say("identity: signing, and 10,000 agents that renew")
	signing, err := goBench(ctx, "./controlplane/ca", "Sign|Renewal", "1x")
	if err != nil {
		return nil, err
	}
	figures := []figure{
		{Name: "first secret, authority on the machine", Unit: milliseconds, Ours: secrets["FirstSecret ms/secret"] / 1e3, Target: 0.015},
		{Name: "change of a secret to its reader", Unit: milliseconds, Ours: secrets["Push ms/push"] / 1e3, Target: 0.005},
	}
	for _, c := range []struct{ name, key string }{
		{"a P-256 request signed, one core", "Sign/issuer=P256/csr=P256"},
		{"a 2048-bit RSA request signed with RSA, one core", "Sign/issuer=RSA2048/csr=RSA2048"},
	} {
		bare, service := signing[c.key+" bare/s"], signing[c.key+" service/s"]
		if bare == 0 || service == 0 {
			return nil, fmt.Errorf("the benchmark %s gave no figures", c.key)
		}
		// 70 % of the speed is 1.43 times the time.
		figures = append(figures, figure{Name: c.name, Unit: milliseconds, Ours: 1 / service, Straight: 1 / bare, TargetRatio: 1.43})
	}
	return append(figures, figure{Name: "10,000 agents renew, none runs out", Unit: seconds, Ours: signing["Renewal s/10000-agents"], Target: 60}), nil
}

// goBench runs benchmarks of a package and returns their figures by
// "name unit".
func goBench(ctx context.Context, pkg, expression, times string) (map[string]float64, error) {
	cmd := exec.CommandContext(ctx, "go", "test", pkg, "-run", "^$", "-bench", expression, "-benchtime", times, "-timeout", "5m")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("benchmarks of %s: %w:\n%s", pkg, err, out)
	}
	figures := map[string]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) < 4 || !strings.HasPrefix(words[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(words[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i >= 0 { // the number of processors
			name = name[:i]
		}
		for i := 2; i+1 < len(words); i += 2 {
			if value, err := strconv.ParseFloat(words[i], 64); err == nil {
				figures[name+" "+words[i+1]] = value
			}
		}
	}
	return figures, nil
}
