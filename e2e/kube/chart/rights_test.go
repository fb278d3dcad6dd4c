// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package chart

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// request is a request in the audit log.
type request struct {
	Verb string
	User struct{ Username string }
	Ref  struct {
		Namespace, Name, APIGroup, Resource, Subresource string
	} `json:"objectRef"`
	Answer struct {
		Code    int
		Message string
	} `json:"responseStatus"`
}

// requests returns the requests of the control plane's service account.
func (r *release) requests(revision string) []request {
	r.t.Helper()
	file, err := os.Open(auditLog(auditDir))
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // only read
	var out []request
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		q := request{}
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			continue // the last line is being written
		}
		if q.User.Username == "system:serviceaccount:"+r.namespace+":outrigger-control-"+revision {
			out = append(out, q)
		}
	}
	if err := lines.Err(); err != nil {
		r.t.Fatal(err)
	}
	return out
}

// powers returns an error if the account of the revision has rights that the control plane does not
// need. With secrets, it may read all Secrets.
func (r *release) powers(revision string, secrets bool) error {
	list := metav1.ListOptions{LabelSelector: "istio.io/rev=" + revision}
	roles, err := r.cluster.Admin().RbacV1().ClusterRoles().List(r.t.Context(), list)
	if err != nil {
		return err
	}
	var problems []error
	for _, role := range roles.Items {
		for _, rule := range role.Rules {
			for _, verb := range []string{"*", "escalate", "bind", "impersonate", "deletecollection"} {
				if slices.Contains(rule.Verbs, verb) {
					problems = append(problems, fmt.Errorf("the verb %s of %v", verb, rule.Resources))
				}
			}
			for _, group := range rule.APIGroups {
				if slices.Contains(rule.Resources, "*") && !strings.HasSuffix(group, ".istio.io") && group != "gateway.networking.k8s.io" {
					problems = append(problems, fmt.Errorf("all kinds of %q", group))
				}
			}
			if slices.Contains(rule.Resources, "secrets") && (!secrets || !slices.Equal(rule.Verbs, []string{"list", "watch"})) {
				problems = append(problems, fmt.Errorf("%v of all Secrets", rule.Verbs))
			}
		}
	}
	return errors.Join(problems...)
}

// TestRights checks that the API server refuses no request of the control plane, with the fewest
// and with the most rights that the chart can grant.
func TestRights(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "-C", "../../..", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	off := map[string]any{"enabled": false}
	for revision, values := range map[string]map[string]any{
		"little": {
			"injection": off, "validation": off, "gatewaySecrets": off, "gatewayAPI": off, "remoteClusters": off,
			"podDisruptionBudget": off, "networkPolicy": off,
		},
		"much": {
			"trustedNodeAccounts": []any{"kube-system/agent"}, "certificateSigners": []any{"example.com/*"}, "tags": []any{"much-too"},
			"env": map[string]any{"CERT_SIGNER_DOMAIN": "example.com"},
		},
	} {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			r := newRelease(t)
			if revision == "much" {
				if err := r.cluster.ApplyCRDs(t.Context(), filepath.Join(strings.TrimSpace(string(out)), "config/crd/standard")); err != nil {
					t.Fatal(err)
				}
			}
			values["revision"] = revision
			r.mustInstall(values, false)
			r.newControl("-" + revision).start()
			objects := strings.ReplaceAll(meshObjects, "REVISION", revision)
			if revision == "much" {
				eventually(t, "the webhooks have roots", func() error { return r.patched(revision, 5) })
				objects += gatewayObjects
			}
			eventually(t, "objects are taken", func() error { return r.cluster.ApplyIn(t.Context(), r.namespace, []byte(objects)) })
			eventually(t, "the roots are in the namespace", func() error {
				_, err := r.cluster.Admin().CoreV1().ConfigMaps(r.namespace).Get(t.Context(), "istio-ca-root-cert", metav1.GetOptions{})
				return err
			})
			if revision == "much" {
				eventually(t, "the Gateway has a status", func() error {
					text, err := r.cluster.Admin().Discovery().RESTClient().Get().AbsPath("/apis/gateway.networking.k8s.io/v1/namespaces", r.namespace, "gateways/front").DoRaw(t.Context())
					if err == nil && !bytes.Contains(text, []byte(`"conditions"`)) {
						err = fmt.Errorf("it is %s", text)
					}
					return err
				})
			}
			requests := r.requests(revision)
			if len(requests) < 20 {
				t.Errorf("the log of the audit has %d requests of the control plane", len(requests))
			}
			for _, q := range requests {
				if q.Answer.Code == http.StatusForbidden {
					t.Errorf("%s %s/%s of %q in %q: %s", q.Verb, q.Ref.Resource, q.Ref.Name, q.Ref.APIGroup, q.Ref.Namespace, q.Answer.Message)
				}
			}
			if err := r.powers(revision, revision == "much"); err != nil {
				t.Errorf("the account has needless rights: %v", err)
			}
		})
	}
}

// meshObjects and gatewayObjects are objects of users of the revision.
const meshObjects = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: nowhere, labels: {istio.io/rev: REVISION}}
spec: {hosts: [nowhere], http: [{route: [{destination: {host: nowhere}}]}]}
`

const gatewayObjects = `
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: istio}
spec: {controllerName: istio.io/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front, labels: {istio.io/rev: much}}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: front, labels: {istio.io/rev: much}, annotations: {kubernetes.io/ingress.class: istio}}
spec: {defaultBackend: {service: {name: istiod-much, port: {number: 443}}}}
`
