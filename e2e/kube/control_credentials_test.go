// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/certs"
)

const secretReader = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: secret-reader, namespace: edge}
rules:
- {apiGroups: [""], resources: [secrets], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: secret-reader, namespace: edge}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: secret-reader}
subjects: [{kind: ServiceAccount, name: gateway, namespace: edge}]
`

// secretStream requests a Secret as a gateway and returns the responses.
func secretStream(ctx context.Context, t *testing.T, conn *grpc.ClientConn, id certs.ID, name string) <-chan *tlsv3.Secret {
	t.Helper()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	node, err := structpb.NewStruct(map[string]any{"NAMESPACE": id.Namespace, "SERVICE_ACCOUNT": id.ServiceAccount, "CLUSTER_ID": "one"})
	if err != nil {
		t.Fatal(err)
	}
	const typeURL = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	request := &discoveryv3.DiscoveryRequest{
		Node:    &corev3.Node{Id: fmt.Sprintf("router~10.0.0.1~gateway.%s~%s.svc.cluster.local", id.Namespace, id.Namespace), Metadata: node},
		TypeUrl: typeURL, ResourceNames: []string{name},
	}
	if err := stream.Send(request); err != nil {
		t.Fatal(err)
	}
	secrets := make(chan *tlsv3.Secret, 8)
	go func() {
		for {
			resp, err := stream.Recv()
			if err != nil {
				return // the test has ended, or its wait has timed out
			}
			for _, r := range resp.GetResources() {
				secret := &tlsv3.Secret{}
				if r.UnmarshalTo(secret) == nil {
					secrets <- secret
				}
			}
			ack := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: []string{name}, ResponseNonce: resp.GetNonce(), VersionInfo: resp.GetVersionInfo()}
			if stream.Send(ack) != nil {
				return
			}
		}
	}()
	return secrets
}

// TestControlCredentials checks that a gateway receives the certificate of its namespace from a
// Secret, and each new one, if its service account may read Secrets there. Other accounts do not.
func TestControlCredentials(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	kubeconfig := install(t, c, "rbac.yaml", "rbac-credentials.yaml")
	ctx := t.Context()
	if err := c.CreateNamespace(ctx, "edge"); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(ctx, []byte(secretReader)); err != nil {
		t.Fatal(err)
	}
	root := newIssuer(t)
	first, second := certificatePair(t, root, "tls.crt", "tls.key", time.Hour), certificatePair(t, root, "tls.crt", "tls.key", time.Hour)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cert", Namespace: "edge"}, Type: corev1.SecretTypeTLS, Data: first}
	if _, err := c.Admin().CoreV1().Secrets("edge").Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	control := startControl(t, kubeconfig, []string{"OUTRIGGER_CREDENTIALS=k8s://", "CLUSTER_ID=one"})
	roots := waitRoots(t, c, "edge")
	open := func(account string) <-chan *tlsv3.Secret {
		id := certs.ID{TrustDomain: "cluster.local", Namespace: "edge", ServiceAccount: account}
		token := istioToken(t, c, "edge", account, podOn(t, c, "edge", account, "node-1"))
		pair, _, err := sign(withToken(ctx, token, "one"), t, control.dial(t, roots), id, nil)
		if err != nil {
			t.Fatal(err)
		}
		return secretStream(ctx, t, control.dial(t, roots, pair), id, "kubernetes://cert")
	}
	gateway, stranger := open("gateway"), open("stranger")
	next := func(want map[string][]byte) {
		t.Helper()
		select {
		case s := <-gateway:
			if got := s.GetTlsCertificate().GetCertificateChain().GetInlineBytes(); string(got) != string(want["tls.crt"]) {
				t.Errorf("the gateway got %d bytes that are another certificate", len(got))
			}
		case <-time.After(2 * time.Minute):
			t.Fatal("the gateway waits for its certificate")
		}
	}
	next(first)
	secret.Data = second
	if _, err := c.Admin().CoreV1().Secrets("edge").Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	next(second)
	select {
	case <-stranger:
		t.Error("an account without the right got the certificate")
	default: // the gateway has received two since
	}
	text, err := os.ReadFile(control.Log())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), string(first["tls.key"][40:80])) || strings.Contains(string(text), "PRIVATE KEY") {
		t.Error("the log contains a key")
	}
}
