// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// Where things listen. Each agent has an address of its own, agentNet and a
// number.
const (
	controlHost = "127.9.0.1"
	relayHost   = "127.9.0.4"
	aloneHost   = "127.9.0.5"
	floorHost   = "127.9.0.6"
	agentNet    = "127.9.1."
	hotHost     = "127.9.40.1"
	plaintext   = ":15010"
	secure      = ":15012"
)

// control is a running control plane.
type control struct {
	*process
	root string // its root certificate
}

// startControl runs the control plane on the mesh and waits until it is
// ready. Its address for proxies is controlHost with plaintext or secure.
func (b *bench) startControl(ctx context.Context, name, rule string) (*control, error) {
	dir := b.path(name)
	mesh := filepath.Join(dir, "mesh.yaml")
	text := fmt.Sprintf("configSources: [{address: %q}]\ntrustDomain: cluster.local\nrootNamespace: istio-system\n", "fs://"+b.path("config"))
	if !b.redirect {
		text += "proxyHttpPort: 15080\n"
	}
	if err := writeFile(mesh, text); err != nil {
		return nil, err
	}
	args := []string{
		"discovery", "--meshConfig", mesh, "--registries", "", "--grpcAddr", controlHost + plaintext,
		"--secureGRPCAddr", controlHost + secure, "--httpAddr", controlHost + ":8080", "--monitoringAddr", controlHost + ":15014",
	}
	if b.profiles != "" {
		args = append(args, "--profile")
	}
	env := []string{"JWT_RULE=" + rule, "OUTRIGGER_STATE_DIR=" + filepath.Join(dir, "ca"), "POD_NAMESPACE=istio-system"}
	if b.controlEnv != "" {
		env = append(env, strings.Split(b.controlEnv, ",")...)
	}
	p, err := b.start.run(spec{path: filepath.Join(b.bin, "outrigger-control"), dir: dir, log: b.path(name + ".log"), args: args, env: env})
	if err != nil {
		return nil, err
	}
	if _, err := p.wait(ctx, "http://"+controlHost+":8080/ready", ""); err != nil {
		p.stop()
		return nil, err
	}
	return &control{process: p, root: filepath.Join(dir, "ca", "root-cert.pem")}, nil
}
