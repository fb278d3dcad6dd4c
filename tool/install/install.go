// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// installer installs one release.
type installer struct {
	*client
	release
	chart *chart
	force bool // takes fields from other owners
	out   io.Writer
}

func (i *installer) say(format string, args ...any) {
	_, _ = fmt.Fprintf(i.out, format+"\n", args...) // the terminal may be closed
}

// install applies the objects and deletes those of the release that are no longer among them. It
// changes nothing, except that it makes the namespace, before the API server has accepted all of
// the objects in a dry run.
func (i *installer) install(ctx context.Context, objects []*unstructured.Unstructured) error {
	var server struct{ Major, Minor string }
	if err := i.call(ctx, http.MethodGet, "/version", nil, nil, &server); err != nil {
		return fmt.Errorf("get the version of the API server: %w", err)
	}
	if err := i.chart.supports(server.Major, server.Minor); err != nil {
		return err
	}
	if err := i.noHelm(ctx); err != nil {
		return err
	}
	if err := i.alone(ctx, objects); err != nil {
		return err
	}
	objects, err := i.ownKinds(ctx, objects)
	if err != nil {
		return err
	}
	made, err := i.namespace(ctx)
	if err != nil {
		return err
	}
	if err := i.try(ctx, objects); err != nil {
		if made {
			err = errors.Join(err, i.remove(ctx, namespaces, "", i.Namespace, false))
		}
		return err
	}
	before, err := i.existing(ctx)
	if err != nil {
		return err
	}
	for n, o := range objects {
		if _, err := i.apply(ctx, o, false, i.force || o.GetKind() == kindOfKinds); err != nil {
			return fmt.Errorf("%s: %w: %d of %d objects are applied; correct it and run the same command again", describe(o), err, n, len(objects))
		}
	}
	removed := 0
	for _, old := range before {
		if slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool { return describe(o) == describe(&old) }) {
			continue
		}
		if err := i.delete(ctx, &old, false); err != nil {
			return err
		}
		removed++
	}
	i.say("%d objects are applied, %d old ones removed", len(objects), removed)
	return nil
}

// try lets the API server check all objects. The error lists all problems.
func (i *installer) try(ctx context.Context, objects []*unstructured.Unstructured) error {
	var problems []error
	conflict := false
	for _, o := range objects {
		_, err := i.apply(ctx, o, true, i.force || o.GetKind() == kindOfKinds)
		if err == nil {
			continue
		}
		if answer := (*apiError)(nil); !errors.As(err, &answer) {
			return err // the others would fail for the same reason
		}
		conflict = conflict || isCode(err, http.StatusConflict)
		problems = append(problems, fmt.Errorf("%s: %w", describe(o), err))
	}
	if len(problems) == 0 {
		return nil
	}
	cure := "correct the values or your rights"
	if conflict {
		cure = "these fields were set by others; --force-conflicts sets them to the values of the chart"
	}
	return fmt.Errorf("nothing is installed, because the API server refuses %d of %d objects:\n%w\n%s", len(problems), len(objects), errors.Join(problems...), cure)
}

// noHelm returns an error if Helm has the release, or an object of the same name.
func (i *installer) noHelm(ctx context.Context) error {
	secrets, err := i.list(ctx, resource{version: "v1", plural: "secrets", namespaced: true}, i.Namespace, url.Values{
		"labelSelector": {"owner=helm,name=" + i.name()}, "fieldSelector": {"type=helm.sh/release.v1"}, "limit": {"1"},
	})
	if err != nil {
		return fmt.Errorf("look for releases of Helm in %s: %w", i.Namespace, err)
	}
	helm := i.name()
	if len(secrets) == 0 {
		d, err := i.get(ctx, deployments, i.Namespace, i.deployment())
		if err != nil {
			return fmt.Errorf("look for an installation in %s: %w", i.Namespace, err)
		}
		if d == nil || d.GetLabels()[managedBy] != "Helm" {
			return nil
		}
		helm = d.GetLabels()[instance]
	}
	return fmt.Errorf("the namespace %s has the release %s of Helm: upgrade it with helm, remove it with helm uninstall -n %s %s, or choose another --revision", i.Namespace, helm, i.Namespace, helm)
}

// alone returns an error if another control plane injects proxies for a revision or a tag of the
// release, such as Istio, or Outrigger in another namespace: pods would get two.
func (i *installer) alone(ctx context.Context, objects []*unstructured.Unstructured) error {
	existing, err := i.list(ctx, injectors, "", nil)
	if err != nil {
		return fmt.Errorf("list the webhooks of the cluster: %w", err)
	}
	for _, o := range objects {
		if o.GetKind() != injectors.kind {
			continue
		}
		for _, other := range existing {
			if revision := serves(o); other.GetName() != o.GetName() && serves(&other) == revision {
				return fmt.Errorf("the revision %s has another control plane, of %s/%s: choose another --revision, or remove that one first", revision, strings.ToLower(o.GetKind()), other.GetName())
			}
		}
	}
	return nil
}

// serves returns the value of the label istio.io/rev for whose pods a webhook is, or "" if it is none
// of a mesh.
func serves(o *unstructured.Unstructured) string {
	labels := o.GetLabels()
	if tag := labels["istio.io/tag"]; tag != "" {
		return tag
	}
	if labels["app"] != "sidecar-injector" {
		return ""
	}
	return labels[revisionKey]
}

// ownKinds returns the objects without the kinds that others have installed, such as Istio.
func (i *installer) ownKinds(ctx context.Context, objects []*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	kinds, err := i.list(ctx, resources()[0], "", nil)
	if err != nil {
		return nil, fmt.Errorf("list the kinds of the cluster: %w", err)
	}
	foreign := map[string]bool{}
	for _, kind := range kinds {
		foreign[kind.GetName()] = kind.GetLabels()[partOf] != manager
	}
	var own []*unstructured.Unstructured
	for _, o := range objects {
		if o.GetKind() != kindOfKinds || !foreign[o.GetName()] {
			own = append(own, o)
		}
	}
	if n := len(objects) - len(own); n > 0 {
		i.say("%d kinds (CustomResourceDefinitions) of another owner stay as they are", n)
	}
	return own, nil
}

// Kinds that are looked up.
var (
	injectors   = resource{kind: "MutatingWebhookConfiguration", version: "admissionregistration.k8s.io/v1", plural: "mutatingwebhookconfigurations"}
	namespaces  = resource{kind: "Namespace", version: "v1", plural: "namespaces"}
	deployments = resource{kind: "Deployment", version: "apps/v1", plural: "deployments", namespaced: true}
)

// namespace makes the namespace unless it exists, and reports whether it did.
func (i *installer) namespace(ctx context.Context) (made bool, err error) {
	o, err := i.get(ctx, namespaces, "", i.Namespace)
	if err != nil || o != nil {
		return false, err
	}
	body := map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": i.Namespace}}
	if err := i.call(ctx, http.MethodPost, namespaces.path("", ""), nil, body, nil); err != nil {
		return false, fmt.Errorf("create the namespace %s: %w", i.Namespace, err)
	}
	i.say("the namespace %s was created", i.Namespace)
	return true, nil
}

// existing returns the objects of the release, in the order in which they are deleted. Kinds are not
// among them.
func (i *installer) existing(ctx context.Context) ([]unstructured.Unstructured, error) {
	var all []unstructured.Unstructured
	for _, r := range slices.Backward(resources()) {
		if r.kind == kindOfKinds {
			continue
		}
		items, err := i.list(ctx, r, i.Namespace, url.Values{"labelSelector": {i.selector()}})
		if err != nil {
			return nil, fmt.Errorf("list the objects of the release: %w", err)
		}
		for _, item := range items {
			item.SetKind(r.kind) // lists leave it out
			item.SetAPIVersion(r.version)
			all = append(all, item)
		}
	}
	return all, nil
}

// delete deletes an object of the cluster.
func (i *installer) delete(ctx context.Context, o *unstructured.Unstructured, dryRun bool) error {
	r, err := resourceOf(o)
	if err != nil {
		return err
	}
	if err := i.remove(ctx, r, o.GetNamespace(), o.GetName(), dryRun); err != nil {
		return fmt.Errorf("delete %s: %w", describe(o), err)
	}
	return nil
}

// describe names an object as kubectl does.
func describe(o *unstructured.Unstructured) string {
	return strings.ToLower(o.GetKind()) + "/" + o.GetName()
}
