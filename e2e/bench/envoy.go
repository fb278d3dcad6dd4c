// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"
)

// envoySize is what Envoy's size is measured with.
const (
	envoyServices = 1000
	envoyImports  = 10
)

// envoySize measures what a mesh costs each Envoy that traffic is redirected to:
// with all services, and with a Sidecar that imports ten of them. Envoy listens on
// every address of its machine then; so it, its agent and the control plane run on
// a machine of their own, a network namespace.
func (b *bench) envoySize(ctx context.Context) (figures []figure, err error) {
	sub := *b
	sub.dir, sub.redirect, sub.services = b.path("envoy"), true, envoyServices
	if sub.start, err = newMachine(); err != nil {
		return nil, err
	}
	defer sub.start.close()
	if err := writeMesh(sub.path("config"), sub.services); err != nil {
		return nil, err
	}
	token, rule, err := newIdentity()
	if err != nil {
		return nil, err
	}
	c, err := sub.startControl(ctx, "control", rule)
	if err != nil {
		return nil, err
	}
	defer c.stop()
	all, err := sub.envoyOnce(ctx, c, "all", token)
	if err != nil {
		return nil, err
	}
	if err := writeFile(sub.path("config", "sidecar.yaml"), importing(envoyImports)); err != nil {
		return nil, err
	}
	few, err := sub.envoyOnce(ctx, c, "few", token)
	if err != nil {
		return nil, err
	}
	for _, r := range []struct {
		what string
		envoyRun
	}{{fmt.Sprintf("%d services", envoyServices), all}, {fmt.Sprintf("%d of %d services", envoyImports, envoyServices), few}} {
		title := "redirected Envoy, " + r.what + ": "
		figures = append(figures,
			figure{Name: title + "resident memory", Unit: megabytes, Ours: r.resident},
			figure{Name: title + "anonymous memory", Unit: megabytes, Ours: r.anonymous},
			figure{Name: title + "config dump", Unit: megabytes, Ours: r.dump},
			figure{Name: title + "start until ready, agent included", Unit: seconds, Ours: r.ready})
		b.say("envoy: %s: %.1f MB resident, %.1f MB anonymous, config dump %.2f MB, %.0f listeners and %.0f clusters, ready after %.3f s",
			r.what, r.resident/1e6, r.anonymous/1e6, r.dump/1e6, r.listeners, r.clusters, r.ready)
	}
	if few.clusters >= all.clusters {
		return figures, fmt.Errorf("the Sidecar imports %d of %d services, but Envoy has %.0f clusters instead of %.0f", envoyImports, envoyServices, few.clusters, all.clusters)
	}
	return figures, nil
}

// importing is a Sidecar of the namespace that imports some of the services.
func importing(services int) string {
	var b strings.Builder
	b.WriteString("apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: default, namespace: default}\nspec:\n  egress:\n  - hosts:\n")
	for i := range services {
		fmt.Fprintf(&b, "    - ./svc-%d.mesh.local\n", i)
	}
	return b.String()
}

// envoyRun is what one start of Envoy gave: bytes, seconds, numbers.
type envoyRun struct {
	resident, anonymous, dump, ready float64
	listeners, clusters              float64
}

// envoyOnce starts an agent and Envoy and looks at Envoy two seconds after it is
// ready.
func (b *bench) envoyOnce(ctx context.Context, c *control, name, token string) (r envoyRun, err error) {
	address := agentNet + "1"
	p, err := b.startAgent(name, agentSpec{
		address: address, discovery: controlHost + secure, binary: b.envoy, token: token, root: c.root, redirect: true,
	})
	if err != nil {
		return r, err
	}
	defer p.stop()
	ready, err := p.wait(ctx, "http://"+address+":15020/healthz/ready", "")
	if err != nil {
		return r, err
	}
	r.ready = ready.Seconds()
	if err := sleep(ctx, 2*time.Second); err != nil {
		return r, err
	}
	envoy, err := child(p.pid(), b.envoy)
	if err != nil {
		return r, err
	}
	if r.resident, r.anonymous, err = memory(envoy); err != nil {
		return r, err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: b.start.dial}, Timeout: 30 * time.Second}
	defer client.CloseIdleConnections()
	dump, err := get(ctx, client, "http://"+address+":15000/config_dump?include_eds")
	if err != nil {
		return r, err
	}
	r.dump = float64(len(dump))
	for _, count := range []struct {
		path string
		to   *float64
	}{{"listeners", &r.listeners}, {"clusters?format=json", &r.clusters}} {
		text, err := get(ctx, client, "http://"+address+":15000/"+count.path)
		if err != nil {
			return r, err
		}
		if count.to == &r.listeners {
			r.listeners = float64(strings.Count(text, "\n"))
		} else {
			r.clusters = float64(strings.Count(text, `"observability_name"`))
		}
	}
	return r, nil
}

// get returns the body of an answer.
func get(ctx context.Context, client *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", fmt.Errorf("ask %s: %w", url, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask %s: %w", url, err)
	}
	body, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return "", fmt.Errorf("ask %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s", filepath.Base(url), resp.Status)
	}
	return string(body), nil
}
