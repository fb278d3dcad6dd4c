// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package platform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

const (
	// azurePath requests the oldest version that has all fields below. Newer versions include user
	// data, which is not needed.
	azurePath   = "/metadata/instance/compute?api-version=2019-08-15"
	azurePrefix = "azure_"
)

// azureCompute is the part of Azure's response that is used.
type azureCompute struct {
	Name     string `json:"name"`
	Location string `json:"location"`
	Zone     string `json:"zone"`
	VMID     string `json:"vmId"`
	// Tags are semicolon-separated name:value pairs that can contain neither separator. TagsList
	// holds the same tags without this limitation.
	Tags     string `json:"tags"`
	TagsList []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"tagsList"`
}

// askAzure queries the instance metadata service.
func (c Config) askAzure(ctx context.Context) (Result, error) {
	s := newService(c.Endpoints.Azure, linkLocal)
	s.header = http.Header{"Metadata": {"true"}}
	doc, err := s.do(ctx, http.MethodGet, azurePath, maxDocument)
	if err != nil {
		return Result{Name: Azure}, err
	}
	return parseAzure(doc)
}

// parseAzure parses Azure's response. If it returns an error, the result contains the fields that
// could be parsed.
func parseAzure(doc []byte) (Result, error) {
	result := Result{Name: Azure}
	var vm azureCompute
	err := json.Unmarshal(doc, &vm)
	var mismatch *json.UnmarshalTypeError // concerns one field: the others were parsed
	if err != nil {
		err = fmt.Errorf("the response of %s: %w", azurePath, err)
		if !errors.As(err, &mismatch) {
			return result, err
		}
	}
	keep := func(key, value string) {
		value, ok := printable(value)
		if key, keyOK := printable(key); !ok || !keyOK {
			err = errors.Join(err, fmt.Errorf("%.64q is ignored: it is not a line of text", key))
			return
		}
		if result.Metadata == nil {
			result.Metadata = map[string]string{}
		}
		result.Metadata[azurePrefix+key] = value
	}
	for _, field := range [][2]string{{"name", vm.Name}, {"location", vm.Location}, {"vmId", vm.VMID}} {
		if field[1] != "" {
			keep(field[0], field[1])
		}
	}
	for name, value := range vm.tags() {
		keep(name, value)
	}
	if validLocality(vm.Location) {
		result.Locality.Region = vm.Location
		if validLocality(vm.Zone) {
			result.Locality.Zone = vm.Zone
		}
	}
	if err == nil && result.Metadata == nil {
		err = fmt.Errorf("the response of %s does not describe a machine", azurePath)
	}
	return result, err
}

// tags iterates over the tags of the machine in the order of the response.
func (vm azureCompute) tags() func(yield func(name, value string) bool) {
	return func(yield func(string, string) bool) {
		if vm.TagsList != nil {
			for _, tag := range vm.TagsList {
				if tag.Name != "" && !yield(tag.Name, tag.Value) {
					return
				}
			}
			return
		}
		for tag := range strings.SplitSeq(vm.Tags, ";") {
			if name, value, _ := strings.Cut(tag, ":"); name != "" && !yield(name, value) {
				return
			}
		}
	}
}
