// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package chart

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
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

// readsRoots returns an error until the ConfigMap that the BackendTLSPolicy names is followed, and
// for watches of all ConfigMaps but the roots of the mesh.
func (r *release) readsRoots(revision string) error {
	found := false
	for _, q := range r.requests(revision) {
		if q.Ref.Resource != "configmaps" || q.Verb != "watch" && q.Verb != "list" {
			continue
		}
		if q.Ref.Name == "" {
			return errors.New("all ConfigMaps are read")
		}
		found = found || q.Ref.Name == "backend-roots"
	}
	if !found {
		return errors.New("the ConfigMap is not followed")
	}
	return nil
}

// seldom are the rights, as verb, group and resource or a part of that, that this test need not use,
// and what uses them.
var seldom = map[string]string{
	"list ":                   "API servers that do not stream lists",
	"delete ":                 "namespaces, Gateways and machines that go",
	"create  configmaps":      "patches that create the roots; the API server logs no create",
	"workloadentries":         "machines that register themselves",
	"autoscaling":             "Gateways with parameters",
	"policy poddisruption":    "Gateways with parameters",
	"tokenreviews":            "proxies with tokens of the cluster",
	"subjectaccessreviews":    "gateways that ask for Secrets",
	"get  pods":               "agents of nodes",
	"certificates.k8s.io":     "workloads, if a signer of the cluster signs",
	"update  secrets":         "a rotation of the root",
	"create networking.istio": "webhooks that the API server reaches",
	"networking.k8s.io ingr":  "Ingresses whose gateway has an address",
	"get security.istio.io":   otherStatus, "security.istio.io */status": otherStatus,
	"get telemetry.istio.io": otherStatus, "telemetry.istio.io */status": otherStatus,
	"get extensions.istio.io": otherStatus, "extensions.istio.io */status": otherStatus,
}

// otherStatus says who uses rights like those for the group of the VirtualService, which are used.
const otherStatus = "the status of objects with a problem"

// unused returns an error that names the rights of the account that no request used, except seldom
// ones.
func (r *release) unused(revision string) error {
	r.t.Helper()
	requests := r.requests(revision)
	list := metav1.ListOptions{LabelSelector: "istio.io/rev=" + revision}
	cluster, err := r.cluster.Admin().RbacV1().ClusterRoles().List(r.t.Context(), list)
	if err != nil {
		r.t.Fatal(err)
	}
	own, err := r.cluster.Admin().RbacV1().Roles(r.namespace).List(r.t.Context(), list)
	if err != nil {
		r.t.Fatal(err)
	}
	var rules []rbacv1.PolicyRule
	for _, role := range cluster.Items {
		rules = append(rules, role.Rules...)
	}
	for _, role := range own.Items {
		rules = append(rules, role.Rules...)
	}
	used := map[string]bool{}
	for _, q := range requests {
		resource, sub := q.Ref.Resource, ""
		if q.Ref.Subresource != "" {
			sub = "/" + q.Ref.Subresource
		}
		used[q.Verb+" "+q.Ref.APIGroup+" "+resource+sub], used[q.Verb+" "+q.Ref.APIGroup+" *"+sub] = true, true
	}
	var out []string
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					right := verb + " " + group + " " + resource
					listed := slices.ContainsFunc(slices.Collect(maps.Keys(seldom)), func(part string) bool { return strings.Contains(right, part) })
					if !used[right] && !listed {
						out = append(out, right)
					}
				}
			}
		}
	}
	if len(out) > 0 {
		return fmt.Errorf("never used: %s", strings.Join(out, ", "))
	}
	return nil
}

// TestRights checks that the API server refuses no request of the control plane, with the fewest
// and with the most rights that the chart can grant, and that it uses them.
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
				eventually(t, "the Gateway is accepted", func() error {
					text, err := r.cluster.Admin().Discovery().RESTClient().Get().AbsPath("/apis/gateway.networking.k8s.io/v1/namespaces", r.namespace, "gateways/front").DoRaw(t.Context())
					if err == nil && !bytes.Contains(text, []byte(`"reason":"Accepted"`)) {
						err = fmt.Errorf("it is %s", text)
					}
					return err
				})
			}
			if revision == "much" {
				eventually(t, "only the ConfigMap that a policy names is read", func() error { return r.readsRoots(revision) })
				eventually(t, "rights are used", func() error { return r.unused(revision) })
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
apiVersion: v1
kind: ConfigMap
metadata: {name: backend-roots}
data: {ca.crt: none}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: front, labels: {istio.io/rev: much}}
spec:
  targetRefs: [{group: "", kind: Service, name: istiod-much}]
  validation: {hostname: istiod.example.com, caCertificateRefs: [{group: "", kind: ConfigMap, name: backend-roots}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: front, labels: {istio.io/rev: much}, annotations: {kubernetes.io/ingress.class: istio}}
spec: {defaultBackend: {service: {name: istiod-much, port: {number: 443}}}}
`
