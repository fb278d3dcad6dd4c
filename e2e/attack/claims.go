// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// claimAttacks make false claims that are true for another workload.
func claimAttacks() []attack {
	const area = "claims"
	return []attack{
		{area, "ADS streams that claim the namespace or the service account of another workload", "each stream is refused", shared(claimIdentity)},
		{area, "ADS streams that copy each field of another workload's node and reject every push while its namespace becomes STRICT", "the other workload gets the listeners of STRICT, on its open stream and on a new one", withholdStrict},
		{area, "a machine registers with the labels of another service", "it becomes an endpoint of its own service only", registerAsOther},
	}
}

// claimIdentity opens streams with claims that contradict the certificate.
func claimIdentity(ctx context.Context, p *plane) (string, error) {
	web, err := p.member(ctx, "shop", "web")
	if err != nil {
		return "", err
	}
	claims := map[string]map[string]any{
		"NAMESPACE":                     {"NAMESPACE": "bank"},
		"NAMESPACE of the root":         {"NAMESPACE": "istio-system"},
		"NAMESPACE with another case":   {"NAMESPACE": "SHOP"},
		"NAMESPACE with a path":         {"NAMESPACE": "shop/../bank"},
		"SERVICE_ACCOUNT":               {"SERVICE_ACCOUNT": "pay"},
		"SERVICE_ACCOUNT with a prefix": {"SERVICE_ACCOUNT": "web,pay"},
		"both":                          {"NAMESPACE": "bank", "SERVICE_ACCOUNT": "pay"},
	}
	for _, name := range slices.Sorted(maps.Keys(claims)) {
		node, err := nodeOf("pay", "shop", "10.0.0.1", claims[name])
		if err != nil {
			return "", err
		}
		if err := p.refusesStream(ctx, web, node); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
	}
	// Without a claim, the namespace in the node id applies.
	node, err := nodeOf("pay", "bank", "10.0.0.1", map[string]any{"NAMESPACE": nil})
	if err != nil {
		return "", err
	}
	if err := p.refusesStream(ctx, web, node); err != nil {
		return "", fmt.Errorf("namespace of the node id: %w", err)
	}
	n := len(claims) + 1
	return fmt.Sprintf("%d of %d refused", n, n), p.served(ctx, "shop", "web", "10.0.0.2")
}

// refusesStream returns an error unless the stream ends without sending a resource.
func (p *plane) refusesStream(ctx context.Context, pair *tls.Certificate, node *corev3.Node) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	st, err := p.open(ctx, pair, node)
	if err != nil {
		return err
	}
	defer st.close()
	if err := st.ask(resourcev3.ListenerType); err != nil {
		return nil // the stream has ended
	}
	_, err = st.next(resourcev3.ListenerType)
	return refused(err)
}

const strict = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
`

// takesPlaintext reports whether the inbound listener in a response accepts connections without
// TLS.
func takesPlaintext(r *discoveryv3.DiscoveryResponse) (bool, error) {
	for _, any := range r.Resources {
		var l listenerv3.Listener
		if err := any.UnmarshalTo(&l); err != nil {
			return false, err
		}
		if l.Name != "virtualInbound" {
			continue
		}
		for _, chain := range l.FilterChains {
			m := chain.GetFilterChainMatch()
			blackhole := m.GetDestinationPort().GetValue() == 15006
			if chain.TransportSocket == nil && !blackhole && strings.Contains(chain.String(), "8080") {
				return true, nil
			}
		}
		return false, nil
	}
	return false, errors.New("the listener virtualInbound is missing")
}

// liars returns nodes of web that copy a part of pay's node. The key describes the part.
func liars() (map[string]*corev3.Node, error) {
	pay := map[string]any{"LABELS": map[string]any{"app": "pay"}}
	copies := map[string]map[string]any{
		"all but the account": pay,
		"LABELS":              pay,
		"NAME":                {"NAME": "pay"},
		"WORKLOAD_NAME":       {"WORKLOAD_NAME": "pay", "OWNER": "kubernetes://apis/apps/v1/namespaces/shop/deployments/pay"},
		"INSTANCE_IPS":        {"INSTANCE_IPS": "10.0.0.1"},
		"WORKLOAD_ENTRY":      {"WORKLOAD_ENTRY": "pay"},
		"CLUSTER_ID":          {"CLUSTER_ID": "Kubernetes", "NETWORK": "", "ISTIO_VERSION": "1.31.0"},
		"GENERATOR":           {"GENERATOR": "grpc"},
	}
	nodes := map[string]*corev3.Node{}
	for what, metadata := range copies {
		name, ip := "web", "10.0.0.2"
		if what == "all but the account" {
			name, ip = "pay", "10.0.0.1"
		}
		node, err := nodeOf(name, "shop", ip, metadata)
		if err != nil {
			return nil, err
		}
		nodes[what] = node
	}
	router, err := nodeOf("pay", "shop", "10.0.0.1", pay)
	if err != nil {
		return nil, err
	}
	router.Id = strings.Replace(router.Id, "sidecar", "router", 1)
	nodes["router"] = router
	return nodes, nil
}

// withholdStrict opens streams of web, and streams without identity, that accept the first
// configuration and reject all others.
func withholdStrict(ctx context.Context, s *suite) (outcome, error) {
	p, err := s.newPlane(ctx, map[string]string{"shop.yaml": shop()})
	if err != nil {
		return outcome{}, err
	}
	defer p.Stop()
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	n, err := p.besiege(ctx)
	if err != nil {
		return outcome{}, err
	}
	pay, err := p.asWorkload(ctx, "shop", "pay", "10.0.0.1")
	if err != nil {
		return outcome{}, err
	}
	defer pay.close()
	if err := pay.ask(resourcev3.ListenerType); err != nil {
		return outcome{}, err
	}
	if plain, err := pay.plaintext(); err != nil || !plain {
		return outcome{}, fmt.Errorf("before STRICT, plaintext is refused: this attack shows nothing (%w)", err)
	}
	if err := p.write("strict.yaml", strict); err != nil {
		return outcome{}, err
	}
	for plain := true; plain; {
		if plain, err = pay.plaintext(); err != nil {
			return outcome{}, fmt.Errorf("pay is not given the listeners of STRICT: %w", err)
		}
	}
	again, err := p.asWorkload(ctx, "shop", "pay", "10.0.0.1")
	if err != nil {
		return outcome{}, err
	}
	defer again.close()
	if err := again.ask(resourcev3.ListenerType); err != nil {
		return outcome{}, err
	}
	if plain, err := again.plaintext(); err != nil || plain {
		return outcome{}, fmt.Errorf("a new stream of pay is given listeners that accept plaintext (%w)", err)
	}
	return outcome{seen: fmt.Sprintf("with %d such streams, both were given them", n)}, nil
}

// plaintext receives the next listeners and reports whether they accept plaintext.
func (st *stream) plaintext() (bool, error) {
	r, err := st.next(resourcev3.ListenerType)
	if err != nil {
		return false, err
	}
	return takesPlaintext(r)
}

// besiege opens the streams of liars, which live as long as ctx, and returns their number.
func (p *plane) besiege(ctx context.Context) (int, error) {
	web, err := p.member(ctx, "shop", "web")
	if err != nil {
		return 0, err
	}
	nodes, err := liars()
	if err != nil {
		return 0, err
	}
	var all []*stream
	for _, node := range nodes {
		for range 3 {
			st, err := p.open(ctx, web, node)
			if err != nil {
				return 0, err
			}
			all = append(all, st)
		}
		conn, err := p.plaintext()
		if err != nil {
			return 0, err
		}
		st, err := openOn(ctx, conn, node)
		if err != nil {
			return 0, err
		}
		all = append(all, st)
	}
	for _, st := range all {
		if err := st.ask(resourcev3.ListenerType); err != nil {
			continue // rejected
		}
		if _, err := st.next(resourcev3.ListenerType); err != nil {
			continue // rejected
		}
		go st.reject("", "Error adding/updating listener(s) virtualInbound: bad config")
	}
	return len(all), nil
}

const groups = `apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web, namespace: shop}
spec:
  metadata: {labels: {app: web}}
  template: {serviceAccount: web}
`

// registerAsOther registers a machine of web with the labels of pay.
func registerAsOther(ctx context.Context, s *suite) (outcome, error) {
	p, err := s.newPlane(ctx, map[string]string{"shop.yaml": shop(), "groups.yaml": groups})
	if err != nil {
		return outcome{}, err
	}
	defer p.Stop()
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	web, err := p.member(ctx, "shop", "web")
	if err != nil {
		return outcome{}, err
	}
	const address = "10.0.0.77"
	node, err := nodeOf("machine", "shop", address, map[string]any{
		"AUTO_REGISTER_GROUP": "web", "SERVICE_ACCOUNT": "web", "LABELS": map[string]any{"app": "pay"},
	})
	if err != nil {
		return outcome{}, err
	}
	machine, err := p.open(ctx, web, node)
	if err != nil {
		return outcome{}, err
	}
	defer machine.close()
	if err := machine.ask(resourcev3.ListenerType); err != nil {
		return outcome{}, err
	}
	if _, err := machine.next(resourcev3.ListenerType); err != nil {
		return outcome{seen: "refused"}, refused(err)
	}
	client, err := p.asWorkload(ctx, "shop", "client", "10.0.0.9")
	if err != nil {
		return outcome{}, err
	}
	defer client.close()
	names := []string{"outbound|80||pay.shop.svc.cluster.local", "outbound|80||web.shop.svc.cluster.local"}
	if err := client.ask(resourcev3.EndpointType, names...); err != nil {
		return outcome{}, err
	}
	for {
		r, err := client.next(resourcev3.EndpointType, names...)
		if err != nil {
			return outcome{}, fmt.Errorf("the machine becomes an endpoint of no service: %w", err)
		}
		for _, any := range r.Resources {
			if !bytes.Contains(any.Value, []byte(address)) {
				continue
			}
			if bytes.Contains(any.Value, []byte(names[0])) {
				return outcome{}, errors.New("the machine of shop/web is an endpoint of pay")
			}
			return outcome{seen: "it became an endpoint of its own service"}, nil
		}
	}
}
