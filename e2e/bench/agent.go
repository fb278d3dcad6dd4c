// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/e2e/child"
)

// fakeEnvoy prints the version of an Envoy and then sleeps: the benchmark itself uses the agent's
// socket instead.
const fakeEnvoy = `#!/bin/sh
case "$*" in
*--version*) echo "envoy  version: 0000000000000000000000000000000000000000/1.39.3/Clean/RELEASE/BoringSSL" ;;
*) exec sleep 3600 ;;
esac
`

// agentSpec describes how to run an agent.
type agentSpec struct {
	address string
	// control is the control plane. If nil, the agent connects to discovery in plaintext, and its
	// Envoy is a fake.
	control   *control
	discovery string
	redirect  bool          // not an HTTP proxy
	drain     time.Duration // of a hot restart; 0 means the default
	workers   int           // Envoy's worker threads; 0 means one
	args, env []string
}

// startAgent runs an agent in its own directory below the temporary directory.
func (b *bench) startAgent(name string, a agentSpec) *process {
	dir := b.path(name)
	writeFile(filepath.Join(dir, "etc/istio/pod/labels"), "app=\"bench\"\n")
	config := map[string]any{
		"discoveryAddress": a.discovery, "concurrency": max(a.workers, 1), "terminationDrainDuration": "0.1s", "statusPort": 15020, "proxyAdminPort": 15000,
	}
	if a.control != nil {
		config["discoveryAddress"], config["binaryPath"] = controlHost+secure, b.envoy
		writeFile(filepath.Join(dir, "var/run/secrets/istio/root-cert.pem"), string(must(os.ReadFile(a.control.root))))
		writeFile(filepath.Join(dir, "var/run/secrets/tokens/istio-token"), a.control.token)
	} else {
		config["controlPlaneAuthPolicy"], config["binaryPath"] = "NONE", b.path("fake-envoy")
		check(os.WriteFile(b.path("fake-envoy"), []byte(fakeEnvoy), 0o700))
	}
	if a.drain != 0 {
		config["drainDuration"] = a.drain.String()
	}
	mode := "NONE"
	if a.redirect {
		mode = "REDIRECT"
	}
	return b.start.run(child.Spec{
		Path: filepath.Join(b.bin, "outrigger-agent"), Dir: dir, Log: b.path(name + ".log"),
		Args: append([]string{"proxy", "sidecar", "--domain", "default.svc.cluster.local"}, a.args...),
		Env: append(slices.Clone(a.env),
			"POD_NAME="+name, "POD_NAMESPACE=default", "INSTANCE_IP="+a.address, "SERVICE_ACCOUNT=default",
			"ISTIO_META_INTERCEPTION_MODE="+mode, "ISTIO_META_WORKLOAD_NAME="+name, "ISTIO_META_CLUSTER_ID=Kubernetes",
			"PROXY_CONFIG="+string(must(json.Marshal(config))), "ISTIOD_SAN=istiod.istio-system.svc", "TRUST_DOMAIN=cluster.local",
			"OUTRIGGER_BIND_ADDRESS="+a.address,
		),
	})
}

func statusURL(address, path string) string { return "http://" + address + ":15020" + path }

// agentRun is the measurement of one start of an agent: times in seconds, and the resource usage of
// agent and Envoy two seconds later.
type agentRun struct {
	exec, ready         float64
	agent, envoy, alone usage
	aloneReady          float64
}

// agent measures starts of agent and Envoy in the mesh, alternating with starts of Envoy alone.
func (b *bench) agent(ctx context.Context) {
	b.say("agent: a control plane with %d services", b.services)
	c := b.startControl(ctx, "control")
	var runs []agentRun
	for i := range b.starts {
		r := b.agentOnce(ctx, fmt.Sprintf("agent-%d", i), agentSpec{address: fmt.Sprintf("%s%d", agentNet, i+1), control: c})
		r.aloneReady, r.alone = b.envoyAlone(ctx, i)
		b.say("agent: start %d of %d, ready after %.3f s, Envoy alone after %.3f s", i+1, b.starts, r.ready, r.aloneReady)
		runs = append(runs, r)
	}
	one := c.usage()
	of := func(field func(agentRun) float64) float64 { return median(runs, field) }
	b.add(
		figure{Name: "agent: resident memory", Unit: megabytes, Ours: of(func(r agentRun) float64 { return r.agent.resident }), Target: 20e6},
		figure{Name: "agent: anonymous memory", Unit: megabytes, Ours: of(func(r agentRun) float64 { return r.agent.anonymous }), Target: 8e6},
		figure{Name: "agent: its exec until Envoy's exec", Unit: milliseconds, Ours: of(func(r agentRun) float64 { return r.exec }), Target: 0.06},
		figure{Name: "agent: CPU until 2 s after ready", Unit: seconds, Ours: of(func(r agentRun) float64 { return r.agent.cpu }), Target: 0.06},
		figure{
			Name: "agent and Envoy: start until ready (straight: Envoy alone)", Unit: seconds,
			Ours: of(func(r agentRun) float64 { return r.ready }), Straight: of(func(r agentRun) float64 { return r.aloneReady }), Target: 0.40,
		},
		figure{
			Name: "Envoy in the mesh: resident memory (straight: alone)", Unit: megabytes,
			Ours: of(func(r agentRun) float64 { return r.envoy.resident }), Straight: of(func(r agentRun) float64 { return r.alone.resident }),
		},
		figure{Name: "Envoy in the mesh: anonymous memory", Unit: megabytes, Ours: of(func(r agentRun) float64 { return r.envoy.anonymous })},
		figure{Name: "control plane, one proxy: resident memory", Unit: megabytes, Ours: one.resident},
		figure{Name: "control plane, one proxy: anonymous memory", Unit: megabytes, Ours: one.anonymous},
	)
}

// agentOnce starts agent and Envoy, measures them two seconds after they are ready, and stops them.
func (b *bench) agentOnce(ctx context.Context, name string, a agentSpec) (r agentRun) {
	p := b.startAgent(name, a)
	defer p.stop()
	var envoy int
	envoy, r.exec = p.child(ctx, b.envoy)
	r.ready = p.wait(ctx, statusURL(a.address, "/healthz/ready"), "")
	sleep(ctx, 2*time.Second)
	r.agent, r.envoy = p.usage(), inFigures(must(child.UsageOf(envoy)))
	return r
}

// envoyAlone starts Envoy with one listener and without an agent.
func (b *bench) envoyAlone(ctx context.Context, i int) (ready float64, u usage) {
	config := b.path("alone", fmt.Sprintf("envoy-%d.yaml", i))
	writeFile(config, fmt.Sprintf("admin: {address: {socket_address: {address: %s, port_value: 15000}}}\n", aloneHost)+direct(aloneHost, 15001))
	p := b.start.run(child.Spec{
		Path: b.envoy, Dir: b.path("alone"), Log: b.path(fmt.Sprintf("alone-%d.log", i)),
		Args: []string{"-c", config, "--concurrency", "1", "--disable-hot-restart", "-l", "warning"},
	})
	defer p.stop()
	ready = p.wait(ctx, "http://"+aloneHost+":15000/ready", "LIVE")
	return ready, p.usage()
}
