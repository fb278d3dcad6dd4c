// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrigger-mesh/outrigger/certs"
)

const foreign = `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: taken-istio, namespace: edge, labels: {gateway.networking.k8s.io/gateway-name: taken}}
spec:
  selector: {matchLabels: {app: mine}}
  template: {metadata: {labels: {app: mine}}, spec: {containers: [{name: app, image: mine}]}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: mine, namespace: edge}
`

const canary = `---
apiVersion: v1
kind: Namespace
metadata: {name: canary, labels: {istio.io/rev: prod}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: tag-%s, labels: {istio.io/rev: %s, istio.io/tag: %s}}
webhooks: []
`

// TestDeploymentOfOthers checks that the controller does not change objects of others, and reports
// them:
//   - an object of the same name with another owner, until it is deleted;
//   - a service account of the user is used, and not changed;
//   - Gateways of another class, and of another revision; a tag is this revision.
func TestDeploymentOfOthers(t *testing.T) {
	t.Parallel()
	m := newGatewayMesh(t)
	ctx, admin := t.Context(), m.Admin()
	m.apply(foreign)
	before, err := admin.AppsV1().Deployments("edge").Get(ctx, "taken-istio", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.control()
	m.apply(gateway("taken", "istio"))
	m.apply(gateway("away", "other"))
	m.apply(strings.Replace(gateway("later", "istio"), "name: later,", "name: later, labels: {istio.io/rev: canary},", 1))
	within(t, m.gateways(), "taken", "Programmed", "False NoResources: nothing is deployed: the Deployment taken-istio has another owner")
	if after, err := admin.AppsV1().Deployments("edge").Get(ctx, "taken-istio", metav1.GetOptions{}); err != nil || after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the Deployment of another owner was changed: %v, error %v", after, err)
	}
	if _, err := admin.CoreV1().Services("edge").Get(ctx, "taken-istio", metav1.GetOptions{}); err == nil {
		t.Error("half a gateway was deployed")
	}
	if err := admin.AppsV1().Deployments("edge").Delete(ctx, "taken-istio", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	m.deployed("a name that is free", "taken-istio", nil)
	within(t, m.gateways(), "taken", "Programmed", "AddressNotAssigned")

	mine, err := admin.CoreV1().ServiceAccounts("edge").Get(ctx, "mine", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.apply(strings.Replace(gateway("own", "istio"), "name: own,", "name: own, annotations: {gateway.istio.io/service-account: mine, networking.istio.io/service-type: ClusterIP},", 1))
	soon(t, "the account of a user", func() error {
		d, err := admin.AppsV1().Deployments("edge").Get(ctx, "own-istio", metav1.GetOptions{})
		s, err2 := admin.CoreV1().Services("edge").Get(ctx, "own-istio", metav1.GetOptions{})
		return errors.Join(err, err2, want("the account", d.Spec.Template.Spec.ServiceAccountName, "mine"), want("the type", s.Spec.Type, corev1.ServiceTypeClusterIP))
	})
	if after, err := admin.CoreV1().ServiceAccounts("edge").Get(ctx, "mine", metav1.GetOptions{}); err != nil || after.ResourceVersion != mine.ResourceVersion {
		t.Errorf("the account of the user was changed: %v, error %v", after, err)
	}

	m.apply(fmt.Sprintf(canary, "other", "other", "stable"))
	m.apply(strings.ReplaceAll(gateway("web", "istio"), "namespace: edge", "namespace: canary"))
	m.apply(strings.Replace(gateway("tagged", "istio"), "name: tagged,", "name: tagged, labels: {istio.io/rev: prod},", 1))
	m.apply(gateway("last", "istio"))
	m.deployed("a Gateway after all others", "last-istio", nil)
	m.nothing("away-other")
	m.nothing("later-istio")
	m.nothing("tagged-istio")
	web := func() error {
		_, err := admin.AppsV1().Deployments("canary").Get(ctx, "web-istio", metav1.GetOptions{})
		return err
	}
	if web() == nil {
		t.Error("a Gateway in a namespace of another revision was deployed")
	}
	m.apply(fmt.Sprintf(canary, "own", "default", "prod"))
	soon(t, "a tag of this revision", web)
	m.deployed("a Gateway that names the tag", "tagged-istio", nil)
}

// TestDeploymentByReplicas checks that one of two replicas deploys at a time; the other one takes
// over when it stops. Neither writes unchanged objects.
func TestDeploymentByReplicas(t *testing.T) {
	t.Parallel()
	m := newGatewayMesh(t)
	ctx, admin := t.Context(), m.Admin()
	first := m.control()
	m.apply(gateway("shop", "istio"))
	m.deployed("by the first", "shop-istio", nil)
	m.control()
	m.apply(gateway("more", "istio"))
	before := m.deployed("by one of two", "more-istio", nil)
	if err := first.Stop(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := admin.CoreV1().Services("edge").Delete(ctx, "shop-istio", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	m.deployed("by the second", "shop-istio", nil)
	patch := `{"spec":{"minReadySeconds":3}}` // a field of another writer, which shows that the second replica has processed it
	if _, err := admin.AppsV1().Deployments("edge").Patch(ctx, "shop-istio", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	m.apply(gateway("last", "istio"))
	m.deployed("the last", "last-istio", nil)
	after, err := m.read("more-istio")
	if err != nil {
		t.Fatal(err)
	}
	for _, pair := range [][2]metav1.ObjectMeta{{before.account.ObjectMeta, after.account.ObjectMeta}, {before.deployment.ObjectMeta, after.deployment.ObjectMeta}, {before.service.ObjectMeta, after.service.ObjectMeta}} {
		if pair[0].ResourceVersion != pair[1].ResourceVersion {
			t.Errorf("an object was written again:\n%v\n%v", pair[0], pair[1])
		}
	}
}

// TestDeploymentGetsItsCertificateOnly checks that the deployed account receives the certificate
// that its Gateway names. No other account does: neither a Pod with the labels of the Gateway's
// proxies and another account, nor another Gateway's account.
func TestDeploymentGetsItsCertificateOnly(t *testing.T) {
	t.Parallel()
	m := newGatewayMesh(t)
	ctx, c := t.Context(), m.Cluster
	data := certificatePair(t, newIssuer(t), "tls.crt", "tls.key", time.Hour)
	if _, err := c.Admin().CoreV1().Secrets("edge").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cert"}, Type: corev1.SecretTypeTLS, Data: data}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	control := m.control()
	roots := waitRoots(t, c, "edge")
	m.apply(strings.Replace(gateway("shop", "istio"), "[{name: http, port: 80, protocol: HTTP}]", "[{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}]", 1))
	m.apply(gateway("plain", "istio"))
	m.deployed("the Gateway with a certificate", "shop-istio", nil)
	m.deployed("the Gateway without one", "plain-istio", nil)
	if err := c.CreateServiceAccount(ctx, "edge", "stranger"); err != nil {
		t.Fatal(err)
	}
	open := func(account string) <-chan *tlsv3.Secret {
		t.Helper()
		pod, err := c.Admin().CoreV1().Pods("edge").Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: account, Labels: map[string]string{
				"gateway.networking.k8s.io/gateway-name": "shop", "gateway.istio.io/managed": "istio.io-gateway-controller",
			}},
			Spec: corev1.PodSpec{ServiceAccountName: account, Containers: []corev1.Container{{Name: "istio-proxy", Image: "proxy"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		id := certs.ID{TrustDomain: "cluster.local", Namespace: "edge", ServiceAccount: account}
		pair, _, err := sign(withToken(ctx, istioToken(t, c, "edge", account, pod), "one"), t, control.dial(t, roots), id, nil)
		if err != nil {
			t.Fatal(err)
		}
		return secretStream(ctx, t, control.dial(t, roots, pair), id, "kubernetes-gateway://edge/cert")
	}
	stranger, other, own := open("stranger"), open("plain-istio"), open("shop-istio")
	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	select {
	case s := <-own:
		if got := s.GetTlsCertificate().GetCertificateChain().GetInlineBytes(); string(got) != string(data["tls.crt"]) {
			t.Errorf("the gateway got %d bytes that are another certificate", len(got))
		}
	case <-wait.Done():
		t.Fatal("the gateway waits for its certificate")
	}
	// The log contains both refusals.
	for _, account := range []string{"stranger", "plain-istio"} {
		soon(t, "the refusal of "+account, func() error {
			text, err := os.ReadFile(control.Log())
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				if strings.Contains(line, "kubernetes-gateway://edge/cert") && strings.Contains(line, "/sa/"+account) {
					return nil
				}
			}
			return fmt.Errorf("no line of %s names it", control.Log())
		})
	}
	for name, secrets := range map[string]<-chan *tlsv3.Secret{"a stranger": stranger, "another Gateway": other} {
		select {
		case <-secrets:
			t.Errorf("%s got the certificate", name)
		default:
		}
	}
}
