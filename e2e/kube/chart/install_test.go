// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package chart

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// hook contains the fields of a webhook that the control plane writes.
type hook struct {
	bundle string
	policy admissionv1.FailurePolicyType
}

// hooks returns the webhooks of a revision, by their names.
func (r *release) hooks(revision string) (map[string]hook, error) {
	list := metav1.ListOptions{LabelSelector: "istio.io/rev=" + revision}
	api, out := r.cluster.Admin().AdmissionregistrationV1(), map[string]hook{}
	validating, err := api.ValidatingWebhookConfigurations().List(r.t.Context(), list)
	if err != nil {
		return nil, err
	}
	mutating, err := api.MutatingWebhookConfigurations().List(r.t.Context(), list)
	if err != nil {
		return nil, err
	}
	for _, c := range validating.Items {
		for _, h := range c.Webhooks {
			out[c.Name+" "+h.Name] = hook{string(h.ClientConfig.CABundle), *h.FailurePolicy}
		}
	}
	for _, c := range mutating.Items {
		for _, h := range c.Webhooks {
			out[c.Name+" "+h.Name] = hook{string(h.ClientConfig.CABundle), *h.FailurePolicy}
		}
	}
	return out, nil
}

// patched returns an error unless every webhook of a revision has roots and fails closed.
func (r *release) patched(revision string, want int) error {
	hooks, err := r.hooks(revision)
	if err != nil {
		return err
	}
	if len(hooks) != want {
		return fmt.Errorf("there are %d webhooks, want %d", len(hooks), want)
	}
	for name, h := range hooks {
		if h.bundle == "" || h.policy != admissionv1.Fail {
			return fmt.Errorf("%s has %d bytes of roots and the policy %s", name, len(h.bundle), h.policy)
		}
	}
	return nil
}

// TestInstall installs the chart with default values: its control plane becomes ready with the
// rights of its account, and the API server reaches it through the Service.
func TestInstall(t *testing.T) {
	t.Parallel()
	r := newRelease(t)
	r.mustInstall(map[string]any{"revision": "first"}, false)
	c := r.newControl("-first")
	c.start()
	eventually(t, "the webhooks have roots", func() error { return r.patched("first", 3) })
	gateway := func(spec string) []byte {
		return []byte("apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: front, namespace: " + r.namespace + ", labels: {istio.io/rev: first}}\nspec: " + spec + "\n")
	}
	eventually(t, "a bad object is refused", func() error {
		if err := r.cluster.Apply(t.Context(), gateway("{servers: [{port: {number: 80}}]}")); err == nil || !strings.Contains(err.Error(), "denied the request") {
			return fmt.Errorf("the API server reports: %w", errors.Join(err, errors.New("not refused")))
		}
		return nil
	})
	if err := r.cluster.Apply(t.Context(), gateway("{selector: {app: front}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}")); err != nil {
		t.Errorf("a good object: %v", err)
	}
}

// TestLifecycle checks that the fields of webhooks that the control plane wrote survive an upgrade,
// a rollback and another applier, also while the control plane is down and cannot restore them. An
// uninstall leaves no object of the release.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	for name, clientSide := range map[string]bool{"server": false, "client": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRelease(t)
			installed := r.mustInstall(map[string]any{"revision": name}, clientSide)
			c := r.newControl("-" + name)
			c.start()
			eventually(t, "the webhooks have roots", func() error { return r.patched(name, 3) })
			c.kill()
			before, err := r.hooks(name)
			if err != nil {
				t.Fatal(err)
			}
			same := func(after string) {
				t.Helper()
				if got, err := r.hooks(name); err != nil || !maps.Equal(got, before) {
					t.Errorf("after %s the webhooks are %v, want %v (%v)", after, got, before, err)
				}
			}
			level := func(want string) {
				t.Helper()
				d, err := r.cluster.Admin().AppsV1().Deployments(r.namespace).Get(t.Context(), "outrigger-control-"+name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if args := strings.Join(d.Spec.Template.Spec.Containers[0].Args, " "); !strings.Contains(args, "--log_output_level=default:"+want) {
					t.Errorf("the arguments are %s, want the level %s", args, want)
				}
			}
			r.mustUpgrade(map[string]any{"revision": name, "logLevel": "debug"})
			level("debug")
			same("an upgrade")
			r.mustRollback(1)
			level("info")
			same("a rollback")
			if err := r.cluster.Apply(t.Context(), []byte(installed.Manifest)); err != nil {
				t.Fatal(err)
			}
			same("another applier")
			r.mustUninstall()
			if left, err := r.hooks(name); err != nil || len(left) > 0 {
				t.Errorf("the webhooks %v are left (%v)", left, err)
			}
			r.nothingLeft(name)
		})
	}
}

// nothingLeft fails if objects of the chart remain, except the EndpointSlice, which the test
// created.
func (r *release) nothingLeft(revision string) {
	r.t.Helper()
	ctx, api, list := r.t.Context(), r.cluster.Admin(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=outrigger,istio.io/rev=" + revision}
	count := func(what string, n int, err error) {
		r.t.Helper()
		if err != nil || n > 0 {
			r.t.Errorf("%d %s are left (%v)", n, what, err)
		}
	}
	deployments, err := api.AppsV1().Deployments(r.namespace).List(ctx, list)
	count("Deployments", len(deployments.Items), err)
	services, err := api.CoreV1().Services(r.namespace).List(ctx, list)
	count("Services", len(services.Items), err)
	configs, err := api.CoreV1().ConfigMaps(r.namespace).List(ctx, list)
	count("ConfigMaps", len(configs.Items), err)
	accounts, err := api.CoreV1().ServiceAccounts(r.namespace).List(ctx, list)
	count("ServiceAccounts", len(accounts.Items), err)
	roles, err := api.RbacV1().Roles(r.namespace).List(ctx, list)
	count("Roles", len(roles.Items), err)
	bindings, err := api.RbacV1().RoleBindings(r.namespace).List(ctx, list)
	count("RoleBindings", len(bindings.Items), err)
	clusterRoles, err := api.RbacV1().ClusterRoles().List(ctx, list)
	count("ClusterRoles", len(clusterRoles.Items), err)
	clusterBindings, err := api.RbacV1().ClusterRoleBindings().List(ctx, list)
	count("ClusterRoleBindings", len(clusterBindings.Items), err)
	budgets, err := api.PolicyV1().PodDisruptionBudgets(r.namespace).List(ctx, list)
	count("PodDisruptionBudgets", len(budgets.Items), err)
	policies, err := api.NetworkingV1().NetworkPolicies(r.namespace).List(ctx, list)
	count("NetworkPolicies", len(policies.Items), err)
}

// TestSchema checks that Helm and outrigger install refuse values that the schema does not allow,
// before anything is installed.
func TestSchema(t *testing.T) {
	t.Parallel()
	r := newRelease(t)
	for want, values := range map[string]map[string]any{
		"additional properties 'revison' not allowed": {"revison": "x"},
		"'tagg' not allowed":                          {"image": map[string]any{"tagg": "1"}},
		"/replicaCount":                               {"replicaCount": 0},
		"/revision":                                   {"revision": "Not a label"},
		"invalid propertyName 'POD_NAMESPACE'":        {"env": map[string]any{"POD_NAMESPACE": "other"}},
	} {
		if _, err := r.install(values, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("values %v: %v, want %s", values, err, want)
		}
		text, err := yaml.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := tool(t, "", "install", "--dry-run", "-f", writeValues(t, string(text))); err == nil || !strings.Contains(err.Error(), "outrigger: value ") {
			t.Errorf("outrigger install with values %v: %v: %s", values, err, out)
		}
	}
}
