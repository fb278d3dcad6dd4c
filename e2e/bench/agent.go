// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// agentSpec says how an agent is run.
type agentSpec struct {
	address, discovery, binary string
	token, root                string // empty with plaintext
	plaintext                  bool
	redirect                   bool   // not an HTTP proxy
	drain                      string // of a hot restart, empty for the default
	workers                    int    // Envoy's threads, 0 for one
	args, env                  []string
}

// startAgent runs an agent in a directory of its own below the temporary one.
func (b *bench) startAgent(name string, a agentSpec) (*process, error) {
	config := map[string]any{
		"discoveryAddress": a.discovery, "binaryPath": a.binary, "concurrency": max(a.workers, 1),
		"terminationDrainDuration": "0.1s", "statusPort": 15020, "proxyAdminPort": 15000,
	}
	if a.plaintext {
		config["controlPlaneAuthPolicy"] = "NONE"
	}
	if a.drain != "" {
		config["drainDuration"] = a.drain
	}
	proxyConfig, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("write the proxy config: %w", err)
	}
	mode := "NONE"
	if a.redirect {
		mode = "REDIRECT"
	}
	dir := b.path(name)
	files := map[string]string{"etc/istio/pod/labels": "app=\"bench\"\n"}
	if !a.plaintext {
		root, err := os.ReadFile(a.root)
		if err != nil {
			return nil, fmt.Errorf("read the root certificate: %w", err)
		}
		files["var/run/secrets/istio/root-cert.pem"] = string(root)
		files["var/run/secrets/tokens/istio-token"] = a.token
	}
	for file, text := range files {
		if err := writeFile(filepath.Join(dir, file), text); err != nil {
			return nil, err
		}
	}
	return b.start.run(spec{
		path: filepath.Join(b.bin, "outrigger-agent"), dir: dir, log: b.path(name + ".log"),
		args: append([]string{"proxy", "sidecar", "--domain", "default.svc.cluster.local"}, a.args...),
		env: append(append(strings.FieldsFunc(b.agentEnv, func(r rune) bool { return r == ',' }), a.env...),
			"POD_NAME="+name, "POD_NAMESPACE=default", "INSTANCE_IP="+a.address, "SERVICE_ACCOUNT=default",
			"ISTIO_META_INTERCEPTION_MODE="+mode, "ISTIO_META_WORKLOAD_NAME="+name, "ISTIO_META_CLUSTER_ID=Kubernetes",
			"PROXY_CONFIG="+string(proxyConfig), "ISTIOD_SAN=istiod.istio-system.svc", "TRUST_DOMAIN=cluster.local",
			"OUTRIGGER_BIND_ADDRESS="+a.address,
		),
	})
}

// agentRun is what one start of an agent gave.
type agentRun struct {
	exec, ready, cpu          float64 // seconds
	resident, anonymous       float64 // bytes, like what follows
	envoyResident, envoyAnon  float64
	aloneReady, aloneResident float64
}

// agent measures starts of agent and Envoy in the mesh, and of Envoy alone
// between them.
func (b *bench) agent(ctx context.Context) ([]figure, error) {
	token, rule, err := newIdentity()
	if err != nil {
		return nil, err
	}
	b.say("agent: a control plane with %d services", b.services)
	c, err := b.startControl(ctx, "control", rule)
	if err != nil {
		return nil, err
	}
	defer c.stop()
	var runs []agentRun
	for i := range b.starts {
		r, err := b.agentOnce(ctx, c, i, token)
		if err != nil {
			return nil, err
		}
		b.say("agent: start %d of %d, ready after %.3f s, Envoy alone after %.3f s", i+1, b.starts, r.ready, r.aloneReady)
		runs = append(runs, r)
	}
	resident, anonymous, err := memory(c.pid())
	if err != nil {
		return nil, err
	}
	of := func(field func(agentRun) float64) float64 {
		values := make([]float64, len(runs))
		for i, r := range runs {
			values[i] = field(r)
		}
		m, _ := median(values) // there is at least one run
		return m
	}
	return []figure{
		{Name: "agent: resident memory", Unit: megabytes, Ours: of(func(r agentRun) float64 { return r.resident }), Target: 20e6},
		{Name: "agent: anonymous memory", Unit: megabytes, Ours: of(func(r agentRun) float64 { return r.anonymous }), Target: 8e6},
		{Name: "agent: its exec until Envoy's exec", Unit: milliseconds, Ours: of(func(r agentRun) float64 { return r.exec }), Target: 0.06},
		{Name: "agent: CPU until 2 s after ready", Unit: seconds, Ours: of(func(r agentRun) float64 { return r.cpu }), Target: 0.06},
		{
			Name: "agent and Envoy: start until ready (straight: Envoy alone)", Unit: seconds,
			Ours: of(func(r agentRun) float64 { return r.ready }), Straight: of(func(r agentRun) float64 { return r.aloneReady }), Target: 0.40,
		},
		{
			Name: "Envoy in the mesh: resident memory (straight: alone)", Unit: megabytes,
			Ours: of(func(r agentRun) float64 { return r.envoyResident }), Straight: of(func(r agentRun) float64 { return r.aloneResident }),
		},
		{Name: "Envoy in the mesh: anonymous memory", Unit: megabytes, Ours: of(func(r agentRun) float64 { return r.envoyAnon })},
		{Name: "control plane, one proxy: resident memory", Unit: megabytes, Ours: resident},
		{Name: "control plane, one proxy: anonymous memory", Unit: megabytes, Ours: anonymous},
	}, nil
}

// agentOnce starts an agent, then Envoy alone.
func (b *bench) agentOnce(ctx context.Context, c *control, i int, token string) (r agentRun, err error) {
	address := fmt.Sprintf("%s%d", agentNet, i+1)
	p, err := b.startAgent(fmt.Sprintf("agent-%d", i), agentSpec{
		address: address, discovery: controlHost + secure, binary: b.envoy, token: token, root: c.root,
	})
	if err != nil {
		return r, err
	}
	defer p.stop()
	if r.exec, err = p.untilExec(ctx, b.envoy); err != nil {
		return r, err
	}
	ready, err := p.wait(ctx, "http://"+address+":15020/healthz/ready", "")
	if err != nil {
		return r, err
	}
	r.ready = ready.Seconds()
	if err := sleep(ctx, 2*time.Second); err != nil {
		return r, err
	}
	used, err := cpu(p.pid())
	if err != nil {
		return r, err
	}
	r.cpu = used.Seconds()
	if r.resident, r.anonymous, err = memory(p.pid()); err != nil {
		return r, err
	}
	envoy, err := child(p.pid(), b.envoy)
	if err != nil {
		return r, err
	}
	if r.envoyResident, r.envoyAnon, err = memory(envoy); err != nil {
		return r, err
	}
	p.stop()
	r.aloneReady, r.aloneResident, err = b.envoyAlone(ctx, i)
	return r, err
}

// envoyAlone starts Envoy with one listener and nobody beside it.
func (b *bench) envoyAlone(ctx context.Context, i int) (ready, resident float64, err error) {
	config := b.path("alone", fmt.Sprintf("envoy-%d.yaml", i))
	text := fmt.Sprintf(`admin: {address: {socket_address: {address: %[1]s, port_value: 15000}}}
static_resources:
  listeners:
  - name: only
    address: {socket_address: {address: %[1]s, port_value: 15001}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: only
          http_filters: [{name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
          route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}]}
`, aloneHost)
	if err := writeFile(config, text); err != nil {
		return 0, 0, err
	}
	p, err := b.start.run(spec{
		path: b.envoy, dir: b.path("alone"), log: b.path(fmt.Sprintf("alone-%d.log", i)),
		args: []string{"-c", config, "--concurrency", "1", "--disable-hot-restart", "-l", "warning"},
	})
	if err != nil {
		return 0, 0, err
	}
	defer p.stop()
	live, err := p.wait(ctx, "http://"+aloneHost+":15000/ready", "LIVE")
	if err != nil {
		return 0, 0, err
	}
	resident, _, err = memory(p.pid())
	return live.Seconds(), resident, err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
