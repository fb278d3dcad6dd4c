// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// identity measures keys and certificates with the benchmarks of their packages, which include the
// reference.
func (b *bench) identity(ctx context.Context) {
	b.say("identity: secrets of the agent")
	secrets := b.goBench(ctx, "./sds", "FirstSecret|Push", "50x")
	b.add(
		figure{Name: "first secret, authority on the machine", Unit: milliseconds, Ours: secrets.of("FirstSecret ms/secret") / 1e3, Target: 0.015},
		figure{Name: "change of a secret to its reader", Unit: milliseconds, Ours: secrets.of("Push ms/push") / 1e3, Target: 0.005})
	b.say("identity: signing")
	signing := b.goBench(ctx, "./controlplane/ca", "Sign", "1x")
	for _, c := range []struct{ name, key string }{
		{"a P-256 request signed, one core", "Sign/issuer=P256/csr=P256"},
		{"a 2048-bit RSA request signed with RSA, one core", "Sign/issuer=RSA2048/csr=RSA2048"},
	} {
		// 70 % of the speed is equivalent to 1.43 times the time.
		b.add(figure{Name: c.name, Unit: milliseconds, Ours: 1 / signing.of(c.key+" service/s"), Straight: 1 / signing.of(c.key+" bare/s"), TargetRatio: 1.43})
	}
	b.say("identity: 10,000 agents that renew")
	renewal := b.goBench(ctx, "./controlplane/ca", "Renewal", "1x")
	b.add(figure{Name: "10,000 agents renew, none runs out", Unit: seconds, Ours: renewal.of("Renewal s/10000-agents"), Target: 60})
}

// stores measures how long a file store takes to read and validate all files. The reference parses
// the YAML of the same files, also on all processors, and does nothing else.
func (b *bench) stores(ctx context.Context) {
	b.say("stores: 10,000 objects, %d times", b.rounds)
	files := b.goBench(ctx, "./controlplane/config/file", "FileStoreStart/1-per-file", fmt.Sprintf("%dx", b.rounds))
	const name = "FileStoreStart/1-per-file "
	b.add(
		figure{Name: "10,000 objects loaded from fs://", Unit: seconds, Ours: files.of(name+"ns/op") / 1e9, Straight: files.of(name + "parse-s"), Target: 2},
		figure{Name: "memory of 10,000 objects from fs://", Unit: megabytes, Ours: files.of(name+"MiB-kept") * (1 << 20)})
}

// whatIf measures how long the control plane takes to predict the effect of a change.
func (b *bench) whatIf(ctx context.Context) {
	b.say("what-if: 10,000 services, 1,000 proxies")
	d := b.goBench(ctx, "./controlplane/discovery", "WhatIf", fmt.Sprintf("%dx", b.rounds))
	b.add(figure{Name: "change predicted, 10,000 services, 1,000 proxies", Unit: seconds, Ours: max(d.of("WhatIf/routes ns/op"), d.of("WhatIf/policies ns/op")) / 1e9, Target: 2})
	v := b.goBench(ctx, "./tool/objects", "Validate", fmt.Sprintf("%dx", b.rounds))
	for _, layout := range []string{"yaml-one", "yaml-ten", "yaml-each", "json-one", "json-each"} {
		b.add(figure{Name: "10,000 objects validated, " + layout, Unit: seconds, Ours: v.of("Validate/"+layout+" ns/op") / 1e9, Target: 1})
	}
}

// history measures the history of objects and services: a day, and the answers when its files are full.
func (b *bench) history(ctx context.Context) {
	b.say("history: 24 hours of 1,000 proxies")
	d := b.goBench(ctx, "./controlplane/revisions", "Day", "1x")
	b.add(
		figure{Name: "history of 24 hours, 1,000 proxies: on disk", Unit: megabytes, Ours: d.of("Day disk-MB") * 1e6, Target: 200e6},
		figure{Name: "history, full files: on disk", Unit: megabytes, Ours: d.of("Day full-disk-MB") * 1e6, Target: 200e6},
		figure{Name: "history, full files: memory", Unit: megabytes, Ours: d.of("Day kept-MB") * 1e6})
	for _, c := range [][2]string{{"history", "history"}, {"history service", "history-service"}, {"diff --from", "diff"}, {"rollback", "rollback"}, {"explain request --at, the past", "at"}} {
		b.add(
			figure{Name: "CPU of outrigger " + c[0] + ", 24 hours", Unit: seconds, Ours: d.of("Day "+c[1]+"-ms") / 1e3, Target: 1},
			figure{Name: "… full files", Unit: seconds, Ours: d.of("Day full-"+c[1]+"-ms") / 1e3, Target: 1})
	}
}

// policies measures Envoy's CPU time for requests to a workload with many rules. The reference has
// the same rules in one filter that compares them one by one.
func (b *bench) policies(ctx context.Context) {
	b.say("policies: 1,000 rules of a workload")
	envoy := b.goBench(ctx, "./controlplane/generate", "EnvoyPolicies", fmt.Sprintf("%dx", 10*b.rounds))
	const name = "EnvoyPolicies "
	b.add(figure{Name: "Envoy's CPU for a request, no rules", Unit: milliseconds, Ours: envoy.of(name+"none-us") / 1e6})
	for _, c := range []struct{ title, key string }{
		{"1,000 rules that deny a path", "deny-paths"},
		{"1,000 rules that allow a path", "allow-paths"},
		{"1,000 rules that allow a caller", "allow-callers"},
	} {
		b.add(figure{Name: "the same, " + c.title, Unit: milliseconds, Ours: envoy.of(name+c.key+"-us") / 1e6, Straight: envoy.of(name+c.key+"-reference-us") / 1e6})
	}
}

// telemetry measures Envoy's CPU time for requests that it counts, logs and traces. The reference is
// an Envoy that does not.
func (b *bench) telemetry(ctx context.Context) {
	b.say("telemetry: metrics, access log, traces")
	envoy := b.goBench(ctx, "./controlplane/generate", "EnvoyTelemetry", fmt.Sprintf("%dx", 10*b.rounds))
	for _, c := range [][2]string{{"metrics", "metrics"}, {"an access log", "log"}, {"1 % of traces", "traces"}, {"all three", "all"}} {
		b.add(figure{Name: "Envoy's CPU for a request, with " + c[0], Unit: milliseconds, Ours: envoy.of("EnvoyTelemetry "+c[1]+"-us") / 1e6, Straight: envoy.of("EnvoyTelemetry none-us") / 1e6})
	}
}

// benchmarks contains the results of benchmarks by "name unit".
type benchmarks map[string]float64

func (b benchmarks) of(key string) float64 {
	if b[key] == 0 {
		fail("the benchmark %s gave no figure", key)
	}
	return b[key]
}

// goBench runs benchmarks of a package.
func (b *bench) goBench(ctx context.Context, pkg, expression, times string) benchmarks {
	cmd := exec.CommandContext(ctx, "go", "test", pkg, "-run", "^$", "-bench", expression, "-benchtime", times, "-timeout", "5m")
	cmd.Env = append(os.Environ(), "ENVOY="+must(filepath.Abs(b.envoy)))
	out, err := cmd.CombinedOutput()
	if err != nil {
		fail("benchmarks of %s: %w:\n%s", pkg, err, out[max(0, len(out)-2000):])
	}
	figures := benchmarks{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if len(words) < 4 || !strings.HasPrefix(words[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(words[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i >= 0 { // the suffix is the number of processors
			name = name[:i]
		}
		for i := 2; i+1 < len(words); i += 2 {
			if value, err := strconv.ParseFloat(words[i], 64); err == nil {
				figures[name+" "+words[i+1]] = value
			}
		}
	}
	return figures
}
