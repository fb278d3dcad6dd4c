// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/outrigger-mesh/outrigger/certs"
)

// secretAttacks request private keys of gateways.
func secretAttacks() []attack {
	return []attack{
		{"secrets", "a workload that claims to be a gateway asks for keys of its and other namespaces, by every form of name, also over plaintext", "it gets none; the gateway's own account gets its key", stealKeys},
	}
}

// vault is a Gateway of the Gateway API with a certificate in another namespace, and the grant for
// it.
const vault = `apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: istio}
spec: {controllerName: istio.io/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: infra}
spec:
  gatewayClassName: istio
  listeners:
  - {name: own, port: 443, protocol: HTTPS, hostname: a.example.com, tls: {certificateRefs: [{name: own}]}}
  - {name: granted, port: 443, protocol: HTTPS, hostname: b.example.com, tls: {certificateRefs: [{name: granted, namespace: vault}]}}
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: edge, namespace: vault}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: infra}]
  to: [{group: "", kind: Secret, name: granted}]
`

// tlsSecret returns the YAML of a Secret with a key and its certificate.
func tlsSecret(namespace, name string) (string, error) {
	pair, err := selfMade("spiffe://x/ns/x/sa/x", pkix.Name{CommonName: name}, nil)
	if err != nil {
		return "", err
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return "", errors.New("the key cannot be written")
	}
	key, err := certs.MarshalKey(signer)
	if err != nil {
		return "", err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s}\ntype: kubernetes.io/tls\ndata: {tls.crt: %s, tls.key: %s}\n---\n", name, namespace, encode(cert), encode(key)), nil
}

// stealKeys requests keys with service accounts that have no right to them.
func stealKeys(ctx context.Context, s *suite) (outcome, error) {
	dir, err := s.folder("secrets")
	if err != nil {
		return outcome{}, err
	}
	var all strings.Builder
	for _, name := range [][2]string{{"infra", "own"}, {"vault", "granted"}, {"vault", "other"}} {
		text, err := tlsSecret(name[0], name[1])
		if err != nil {
			return outcome{}, err
		}
		all.WriteString(text)
	}
	if err := write(filepath.Join(dir, "secrets.yaml"), all.String(), 0o600); err != nil {
		return outcome{}, err
	}
	p, err := s.newPlane(ctx, map[string]string{"shop.yaml": shop(), "vault.yaml": vault}, "OUTRIGGER_CREDENTIALS=fs://"+dir, "OUTRIGGER_CREDENTIAL_READERS=infra/gateway")
	if err != nil {
		return outcome{}, err
	}
	defer p.Stop()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	names := []string{
		"kubernetes://own", "own", "kubernetes://infra/own", "kubernetes-gateway://infra/own", "kubernetes-gateway://vault/granted", "kubernetes://vault/granted",
		"kubernetes-gateway://vault/other", "kubernetes://../vault/other", "kubernetes-gateway://vault/../infra/own", "kubernetes://infra/own-cacert", "kubernetes://%2e%2e/own",
		"kubernetes-gateway://infra/edge", "file:///etc/passwd", "builtin://", "kubernetes://*", "kubernetes://infra/*", "default", "ROOTCA",
	}
	// The correct account receives the key, which shows that the attacks below could succeed.
	if given, err := p.keys(ctx, "infra", "gateway", "kubernetes://own"); err != nil || len(given) != 1 {
		return outcome{}, fmt.Errorf("the gateway does not get its own key: %w", err)
	}
	n := 0
	for _, who := range [][2]string{{"infra", "nobody"}, {"shop", "web"}, {"infra", ""}} {
		given, err := p.keys(ctx, who[0], who[1], names...)
		if err != nil {
			return outcome{}, fmt.Errorf("%s/%s: %w", who[0], who[1], err)
		}
		if len(given) > 0 {
			return outcome{}, fmt.Errorf("%s/%s gets %v", who[0], who[1], given)
		}
		n += len(names)
	}
	return outcome{seen: fmt.Sprintf("%d of %d not given", n, n)}, nil
}

// keys requests secrets as a router with the labels of every gateway, and returns the names of
// those received. Without an account, it uses plaintext.
func (p *plane) keys(ctx context.Context, namespace, account string, names ...string) (given []string, err error) {
	node, err := nodeOf("edge", namespace, "10.0.0.50", map[string]any{
		"LABELS": map[string]any{"gateway.networking.k8s.io/gateway-name": "edge", "istio": "ingressgateway"},
	})
	if err != nil {
		return nil, err
	}
	node.Id = strings.Replace(node.Id, "sidecar", "router", 1)
	var pair *tls.Certificate
	if account != "" {
		if pair, err = p.member(ctx, namespace, account); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		conn, err := p.plaintext()
		if pair != nil {
			conn, err = p.connect(pair)
		}
		if err != nil {
			return given, err
		}
		st, err := openOn(ctx, conn, node)
		if err != nil {
			return given, err
		}
		came, err := p.secret(ctx, st, name)
		st.close()
		if err != nil {
			return given, fmt.Errorf("%s: %w", name, err)
		}
		if came {
			given = append(given, name)
		}
	}
	return given, nil
}

// secret requests a secret and reports whether it was received. It returns when the secret has
// arrived or the control plane has counted a refusal.
func (p *plane) secret(ctx context.Context, st *stream, name string) (bool, error) {
	before, err := p.refusals(ctx)
	if err != nil {
		return false, err
	}
	if err := st.ask(resourcev3.SecretType, name); err != nil {
		return false, err
	}
	came := make(chan bool, 1)
	go func() {
		for {
			r, err := st.next(resourcev3.SecretType, name)
			if err != nil {
				came <- false
				return
			}
			if len(r.Resources) > 0 {
				came <- true
				return
			}
		}
	}()
	given := false
	err = eventually(ctx, func() error {
		select {
		case given = <-came:
			return nil
		default:
		}
		now, err := p.refusals(ctx)
		if err == nil && now == before {
			err = errors.New("it is neither given nor refused")
		}
		return err
	})
	return given, err
}

// refusals returns the number of refused secrets, according to the metrics.
func (p *plane) refusals(ctx context.Context) (n float64, err error) {
	_, text, err := get(ctx, "http://"+p.ip+":15014/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); strings.HasPrefix(line, "outrigger_control_sds_refused_total{") && len(f) == 2 {
			value, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				return 0, err
			}
			n += value
		}
	}
	return n, nil
}
