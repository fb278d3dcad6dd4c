// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package install

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// uninstall deletes the objects of the release, webhooks first, and with kinds also the kinds that
// have our label.
func (i *installer) uninstall(ctx context.Context, kinds, dryRun bool) error {
	objects, err := i.existing(ctx)
	if err != nil {
		return err
	}
	others, err := i.others(ctx)
	if err != nil {
		return err
	}
	if len(objects) == 0 && !kinds {
		return i.nothing(others)
	}
	if kinds && len(others) > 0 {
		return fmt.Errorf("other control planes need the kinds: %s; remove them first, or leave --kinds out", strings.Join(others, ", "))
	}
	var foreign int
	if kinds {
		own, n, err := i.kinds(ctx)
		if err != nil {
			return err
		}
		objects, foreign = append(objects, own...), n
	}
	for _, o := range objects {
		if err := i.delete(ctx, &o, dryRun); err != nil {
			return err
		}
		i.say("%s", describe(&o))
	}
	done := "are removed"
	if dryRun {
		done = "would be removed"
	}
	i.say("%d objects %s", len(objects), done)
	switch {
	case !kinds:
		i.say("kept: the kinds (CustomResourceDefinitions) and their objects, which --kinds removes")
	case foreign > 0:
		i.say("kept: %d kinds of Istio's API without the label %s=%s; remove them the way they were installed", foreign, partOf, manager)
	}
	i.say("kept: the namespace %s, and its Secret istio-ca-secret, which is the certificate authority", i.Namespace)
	return nil
}

// nothing is the error when there is no release to remove.
func (i *installer) nothing(others []string) error {
	text := fmt.Sprintf("outrigger install has not installed %s in %s", i.deployment(), i.Namespace)
	if len(others) == 0 {
		return errors.New(text + ", and the cluster has no other control plane of Outrigger")
	}
	return errors.New(text + ": the cluster has " + strings.Join(others, ", "))
}

// others returns the control planes of the cluster that are not of the release.
func (i *installer) others(ctx context.Context) ([]string, error) {
	found, err := i.list(ctx, deployments, "", url.Values{"labelSelector": {partOf + "=" + manager}})
	if err != nil {
		return nil, fmt.Errorf("list control planes: %w", err)
	}
	var out []string
	for _, d := range found {
		labels := d.GetLabels()
		if labels[managedBy] == manager && labels[instance] == i.name() && labels[namespaceKey] == i.Namespace {
			continue
		}
		text := "revision " + labels[revisionKey] + " in " + d.GetNamespace()
		if by := labels[managedBy]; by != manager {
			text += " (managed by " + by + ")"
		}
		out = append(out, text)
	}
	return out, nil
}

// kinds returns the kinds with our label, and the number of kinds of Istio's API without it.
func (i *installer) kinds(ctx context.Context) (own []unstructured.Unstructured, foreign int, err error) {
	all, err := i.list(ctx, resources()[0], "", nil)
	if err != nil {
		return nil, 0, fmt.Errorf("list the kinds of the cluster: %w", err)
	}
	for _, kind := range all {
		switch {
		case kind.GetLabels()[partOf] == manager:
			kind.SetKind(kindOfKinds) // lists leave it out
			kind.SetAPIVersion(resources()[0].version)
			own = append(own, kind)
		case strings.HasSuffix(kind.GetName(), ".istio.io"):
			foreign++
		}
	}
	return own, foreign, nil
}
