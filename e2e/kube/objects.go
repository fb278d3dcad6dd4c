// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

const manager = "kube-test" // owner of fields that Apply sets

// CreateNamespace creates a namespace and in it the service account default,
// which the controller manager would have made. It may be there already.
func (c *Cluster) CreateNamespace(ctx context.Context, name string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); ignoreExists(err) != nil {
		return fmt.Errorf("create the namespace %s: %w", name, err)
	}
	return c.CreateServiceAccount(ctx, name, "default")
}

// CreateServiceAccount creates a service account. It may be there already.
func (c *Cluster) CreateServiceAccount(ctx context.Context, namespace, name string) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); ignoreExists(err) != nil {
		return fmt.Errorf("create the service account %s/%s: %w", namespace, name, err)
	}
	return nil
}

// CreatePod creates a Pod of a service account, for tokens that are bound to it. It does not run.
func (c *Cluster) CreatePod(ctx context.Context, namespace, name, serviceAccount string) (*corev1.Pod, error) {
	pod, err := c.client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			ServiceAccountName: serviceAccount,
			Containers:         []corev1.Container{{Name: "application", Image: "registry.invalid/application:1"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create the pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// Apply creates or changes the objects of YAML or JSON documents in order, as `kubectl apply
// --server-side --force-conflicts` does.
func (c *Cluster) Apply(ctx context.Context, manifests []byte) error {
	return c.ApplyIn(ctx, corev1.NamespaceDefault, manifests)
}

// ApplyIn is like Apply, with a default namespace.
func (c *Cluster) ApplyIn(ctx context.Context, namespace string, manifests []byte) error {
	objects, err := decode(manifests)
	if err != nil {
		return err
	}
	return c.apply(ctx, namespace, objects)
}

// ApplyCRDs applies every CustomResourceDefinition of the .yaml files of a directory and waits
// until their objects can be written.
func (c *Cluster) ApplyCRDs(ctx context.Context, folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil {
		return err
	}
	var crds []*unstructured.Unstructured
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		objects, err := decode(text)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, o := range objects {
			if o.GetKind() == "CustomResourceDefinition" {
				crds = append(crds, o)
			}
		}
	}
	if len(crds) == 0 {
		return fmt.Errorf("no .yaml file in %s holds a CustomResourceDefinition", folder)
	}
	if err := c.apply(ctx, corev1.NamespaceDefault, crds); err != nil {
		return err
	}
	return each(crds, func(crd *unstructured.Unstructured) error {
		if err := c.established(ctx, crd); err != nil {
			return fmt.Errorf("wait for the kind of %s: %w", crd.GetName(), err)
		}
		return nil
	})
}

// each calls a function for all items of a list concurrently, because kube-apiserver delays the
// first reader of each kind.
func each[T any](list []T, do func(T) error) error {
	errs := make([]error, len(list))
	var all sync.WaitGroup
	for i, one := range list {
		all.Go(func() { errs[i] = do(one) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func decode(manifests []byte) (objects []*unstructured.Unstructured, err error) {
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096); ; {
		o := &unstructured.Unstructured{}
		if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("decode document %d: %w", len(objects)+1, err)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}

func (c *Cluster) apply(ctx context.Context, namespace string, objects []*unstructured.Unstructured) error {
	client, err := dynamic.NewForConfig(c.config)
	if err != nil {
		return err
	}
	groups, err := restmapper.GetAPIGroupResources(c.client.Discovery())
	if err != nil {
		return fmt.Errorf("ask for the kinds of the cluster: %w", err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	for _, o := range objects {
		kind := o.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", kind.Kind, o.GetName(), err)
		}
		if o.GetNamespace() == "" && mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			o.SetNamespace(namespace)
		}
		resource := client.Resource(mapping.Resource).Namespace(o.GetNamespace())
		if _, err := resource.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: manager, Force: true}); err != nil {
			return fmt.Errorf("apply %s %s: %w", kind.Kind, o.GetName(), err)
		}
	}
	return nil
}

// established waits until each version of a kind can be listed. The condition of the definition is
// true slightly earlier.
func (c *Cluster) established(ctx context.Context, crd *unstructured.Unstructured) error {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil {
		return err
	}
	for _, v := range versions {
		version, ok := v.(map[string]any)
		if served, _ := version["served"].(bool); !ok || !served {
			continue
		}
		name, _ := version["name"].(string)
		if err := c.listable(ctx, "/apis/"+group+"/"+name+"/"+plural); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) listable(ctx context.Context, path string) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, 2*probeEvery, true, func(ctx context.Context) (bool, error) {
		_, last = c.client.Discovery().RESTClient().Get().AbsPath(path).DoRaw(ctx)
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}
