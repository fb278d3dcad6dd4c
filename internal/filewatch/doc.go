// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package filewatch watches files through symbolic links, as used in Kubernetes volume mounts: any
// link on the path of a file may be replaced. [Watch] reports events for a set of paths; [Points]
// lists the names that must be watched for one path.
package filewatch
