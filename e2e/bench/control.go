// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/outrigger-mesh/outrigger/e2e/child"
)

// Listening addresses. Each agent has its own address, made of agentNet and a number.
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
	root  string // path of its root certificate
	token string // token of the workload default/default
}

// startControl runs the control plane with the mesh and waits until it is ready. Its address for
// proxies is controlHost with the port plaintext or secure.
func (b *bench) startControl(ctx context.Context, name string) *control {
	dir := b.path(name)
	mesh := filepath.Join(dir, "mesh.yaml")
	text := fmt.Sprintf("configSources: [{address: %q}]\ntrustDomain: cluster.local\nrootNamespace: istio-system\n", "fs://"+b.path("config"))
	if !b.redirect {
		text += "proxyHttpPort: 15080\n"
	}
	writeFile(mesh, text)
	token, rule := newIdentity()
	p := b.start.run(child.Spec{Path: filepath.Join(b.bin, "outrigger-control"), Dir: dir, Log: b.path(name + ".log"), Args: []string{
		"discovery", "--meshConfig", mesh, "--registries", "", "--grpcAddr", controlHost + plaintext,
		"--secureGRPCAddr", controlHost + secure, "--httpAddr", controlHost + ":8080", "--monitoringAddr", controlHost + ":15014",
	}, Env: []string{"JWT_RULE=" + rule, "OUTRIGGER_STATE_DIR=" + filepath.Join(dir, "ca"), "POD_NAMESPACE=istio-system"}})
	c := &control{process: p, root: filepath.Join(dir, "ca", "root-cert.pem"), token: token}
	c.wait(ctx, "http://"+controlHost+":8080/ready", "")
	return c
}

// newIdentity creates a key and returns a token of the workload default/default, and the rule with
// which the control plane verifies it. The key is discarded.
func newIdentity() (token, rule string) {
	const issuer, id, audience = "https://outrigger.mesh/bench", "bench", "istio-ca"
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	signer := must(jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: id}}, (&jose.SignerOptions{}).WithType("JWT")))
	now := time.Now()
	token = must(jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: issuer, Subject: "system:serviceaccount:default:default", Audience: jwt.Audience{audience},
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(time.Hour)),
	}).Serialize())
	keys := must(json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: id, Algorithm: string(jose.ES256), Use: "sig"}}}))
	return token, string(must(json.Marshal(map[string]any{"issuer": issuer, "audiences": []string{audience}, "jwks": string(keys)})))
}
