// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/join"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// joinNetwork are replicas on one etcd, with one plugged-in authority, that machines join.
type joinNetwork struct {
	replicas [3]*control
	store    *etcdStore
	roots    string
}

func newJoinNetwork(t *testing.T) *joinNetwork {
	t.Helper()
	n := &joinNetwork{store: startEtcdStore(t, etcdURL(NewEtcd(t, EtcdOptions{}), "", "/mesh"))}
	root := newIssuer(t)
	key, err := certs.MarshalKey(root.key)
	if err != nil {
		t.Fatal(err)
	}
	authority := t.TempDir()
	n.roots = string(certs.EncodeChain(root.cert))
	for name, text := range map[string]string{"ca-key.pem": string(key), "ca-cert.pem": n.roots, "root-cert.pem": n.roots} {
		if err := os.WriteFile(filepath.Join(authority, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.store.Create(t.Context(), &model.Config{
		Key:  model.Key{Kind: model.WorkloadGroup, Namespace: "shop", Name: "orders"},
		Spec: &networkingv1alpha3.WorkloadGroup{Template: &networkingv1alpha3.WorkloadEntry{ServiceAccount: "orders"}},
	}); err != nil {
		t.Fatal(err)
	}
	for i := range n.replicas {
		r := newReplica(t, n.store.Name())
		n.replicas[i] = r
		n.deny(t, r, "# nobody\n")
		r.args = append(r.args, "--secureGRPCAddr", r.secure())
		r.env = append(r.env, "ROOT_CA_DIR="+authority, "OUTRIGGER_ADMIN_SOCKET="+r.admin(), "OUTRIGGER_DENY_LIST="+filepath.Join(r.dir, "denied"), "PILOT_WORKLOAD_ENTRY_GRACE_PERIOD=1s")
		if err := r.Start(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func (c *control) admin() string { return filepath.Join(c.dir, "admin") }

// deny replaces the deny list of a replica.
func (n *joinNetwork) deny(t *testing.T, r *control, text string) {
	t.Helper()
	path := filepath.Join(r.dir, "denied")
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// token creates a token at a replica as an administrator does.
func (n *joinNetwork) token(t *testing.T, r *control) *join.Token {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t, "outrigger"), "join", "create", "--socket", r.admin(),
		"--namespace", "shop", "--service-account", "orders", "--address", "istiod.istio-system.svc:15012", "--output", "token")
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	token, err := join.Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// redeem requests a certificate from a replica with a token.
func (n *joinNetwork) redeem(t *testing.T, r *control, token *join.Token) (tls.Certificate, error) {
	t.Helper()
	pair, chain, err := sign(withToken(t.Context(), token.Secret, token.Cluster), t, r.dial(t, n.roots), token.ID, nil)
	if err != nil {
		return pair, err
	}
	pair.Leaf = chain[0]
	return pair, nil
}

// TestJoinReplicas joins machines through three replicas on one etcd, without Kubernetes.
func TestJoinReplicas(t *testing.T) {
	t.Parallel()
	n := newJoinNetwork(t)
	first := n.token(t, n.replicas[0])
	machine, err := n.redeem(t, n.replicas[1], first)
	if err != nil {
		t.Fatalf("a token of another replica: %v", err)
	}
	for i, r := range n.replicas {
		if _, err := n.redeem(t, r, first); !wasUsed(err) {
			t.Errorf("replica %d, a used token: got error %v", i, err)
		}
	}
	n.race(t)
	n.registered(t, machine)
	n.denied(t, machine)
	n.dying(t)
}

// wasUsed reports whether an error is the refusal of a token that is used up.
func wasUsed(err error) bool {
	return err != nil && strings.Contains(err.Error(), "the join token was used")
}

// race redeems each token at two replicas at once. One of them accepts it.
func (n *joinNetwork) race(t *testing.T) {
	t.Helper()
	for i := range 12 {
		token := n.token(t, n.replicas[i%3])
		var errs [2]error
		var all sync.WaitGroup
		for k := range errs {
			all.Go(func() { _, errs[k] = n.redeem(t, n.replicas[(i+k+i/3)%3], token) })
		}
		all.Wait()
		if errs[0] == nil == (errs[1] == nil) || errs[0] != nil && !wasUsed(errs[0]) || errs[1] != nil && !wasUsed(errs[1]) {
			t.Errorf("token %d at two replicas: got errors %v and %v; want one, that it was used", i, errs[0], errs[1])
		}
	}
}

// registered connects the agent of a machine that joined. All replicas see its entry, until it leaves.
func (n *joinNetwork) registered(t *testing.T, machine tls.Certificate) {
	t.Helper()
	metadata, err := structpb.NewStruct(map[string]any{
		"NAMESPACE": "shop", "SERVICE_ACCOUNT": "orders", "INTERCEPTION_MODE": "NONE", "INSTANCE_IPS": "10.9.0.1", "AUTO_REGISTER_GROUP": "orders",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(n.replicas[2].dial(t, n.roots, machine)).StreamAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeCluster, Node: &corev3.Node{Id: "sidecar~10.9.0.1~orders.shop~shop.svc.cluster.local", Metadata: metadata}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	entries := func(want int) func() error {
		return func() error {
			if got := n.store.List(model.WorkloadEntry, "shop"); len(got) != want {
				return fmt.Errorf("there are %d entries, want %d", len(got), want)
			}
			return nil
		}
	}
	soon(t, "the machine is registered", entries(1))
	leave()
	soon(t, "the machine that left has no entry", entries(0))
}

// denied denies the certificate of a machine at all replicas. Another one of its account joins.
func (n *joinNetwork) denied(t *testing.T, machine tls.Certificate) {
	t.Helper()
	token := n.token(t, n.replicas[0])
	renew := func(r *control) error {
		_, _, err := sign(t.Context(), t, r.dial(t, n.roots, machine), token.ID, nil)
		return err
	}
	for i, r := range n.replicas {
		if err := renew(r); err != nil {
			t.Errorf("replica %d does not renew the certificate of a machine: %v", i, err)
		}
		n.deny(t, r, fmt.Sprintf("serial %X\n", machine.Leaf.SerialNumber))
	}
	for i, r := range n.replicas {
		soon(t, fmt.Sprintf("replica %d refuses the certificate", i), func() error {
			if err := renew(r); err == nil || !strings.Contains(err.Error(), "deny list") {
				return fmt.Errorf("got error %v", err)
			}
			return nil
		})
	}
	if _, err := n.redeem(t, n.replicas[1], token); err != nil {
		t.Errorf("another machine of the account: %v", err)
	}
}

// dying kills a replica while machines join through it. No token is accepted twice, and those that
// were not used are accepted by the others, also those that the replica made.
func (n *joinNetwork) dying(t *testing.T) {
	t.Helper()
	dies := n.replicas[0]
	tokens := make([]*join.Token, 8)
	for i := range tokens {
		tokens[i] = n.token(t, n.replicas[i%3])
	}
	unread := n.token(t, dies)

	errs := make([]error, len(tokens))
	var all sync.WaitGroup
	answered := make(chan struct{}, len(tokens))
	for i, token := range tokens {
		all.Go(func() {
			_, errs[i] = n.redeem(t, dies, token)
			answered <- struct{}{}
		})
	}
	<-answered
	dies.Pause() // what it has not read stays unread
	var unreadErr error
	all.Go(func() { _, unreadErr = n.redeem(t, dies, unread) })
	dies.Kill()
	all.Wait()
	if unreadErr == nil {
		t.Error("a replica that is stopped has signed")
	}
	accepted, lost := 0, 0
	for i, token := range tokens {
		_, err := n.redeem(t, n.replicas[1+i%2], token)
		switch {
		case errs[i] == nil && wasUsed(err), errs[i] != nil && err == nil:
			accepted++
		case errs[i] != nil && wasUsed(err):
			lost++ // its answer did not arrive
		default:
			t.Errorf("token %d: got errors %v, then %v", i, errs[i], err)
		}
	}
	t.Logf("%d of %d tokens have become certificates; of %d the answer was lost", accepted, len(tokens), lost)
	if _, err := n.redeem(t, n.replicas[2], unread); err != nil {
		t.Errorf("a token that a dead replica made and did not use: %v", err)
	}
}
