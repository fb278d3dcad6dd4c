// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package model

import "fmt"

const (
	// MaxProblems is the maximum number of problems in one list.
	MaxProblems = 1000
	// maxProblemsOfObject is the maximum number per object in a list that is too long.
	maxProblemsOfObject = 20
)

// CountProblems returns the number of problems that a list represents.
func CountProblems(list []Problem) (n int) {
	for _, p := range list {
		n += p.Count()
	}
	return n
}

// LimitProblems returns a list of at most [MaxProblems] problems and, if some are left
// out, a last one that counts them. It keeps the first problems of each object, so that
// one object does not hide the problems of others. It does not modify its argument.
func LimitProblems(all []Problem) []Problem {
	if len(all) <= MaxProblems {
		return all
	}
	of, places := make(map[Key]int, MaxProblems), make([]int, len(all))
	counts := make([]int, maxProblemsOfObject+1) // number of problems that are the n-th of their object
	for i, p := range all {
		places[i] = of[p.Object]
		of[p.Object]++
		counts[min(places[i], maxProblemsOfObject)]++
	}
	// In each round every object has one more problem. The last round may be partial.
	round, room := 0, MaxProblems
	for round < maxProblemsOfObject && counts[round] <= room {
		room -= counts[round]
		round++
	}
	if round == maxProblemsOfObject {
		room = 0
	}
	listed, rest := make([]Problem, 0, MaxProblems+1), Problem{Warning: true}
	for i, p := range all {
		switch {
		case places[i] < round:
		case places[i] == round && room > 0:
			room--
		default:
			rest.Unlisted += p.Count()
			rest.Warning = rest.Warning && p.Warning
			continue
		}
		listed = append(listed, p)
	}
	rest.Reason = fmt.Sprintf("%d more problems are not listed: correct the others first", rest.Unlisted)
	return append(listed, rest)
}
