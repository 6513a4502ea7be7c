// Checks histories of a table with porcupine: each file given has an operation a line, as ../history.rs describes them.
//
// A key is a register with compare-and-set. An operation whose outcome nobody knows stays open until the end: it may take
// effect at any time after it began, and what comes after the end asks for nothing. One that was refused is not in the
// history, so whoever reads its value reads what nobody wrote.
//
// It prints a line for each file, and ends with 1 if a history does not hold, with 2 if one cannot be judged.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// How long one key may take.
const patience = 2 * time.Minute

type operation struct {
	Client   int       `json:"client"`
	Key      string    `json:"key"`
	Kind     string    `json:"kind"`
	Value    string    `json:"value"`
	Expected string    `json:"expected"`
	Start    int64     `json:"start"`
	End      int64     `json:"end"`
	Outcome  string    `json:"outcome"`
	Found    *string   `json:"found"`
	Version  [2]uint64 `json:"version"`
	Existed  *bool     `json:"existed"`
}

// What a key has: a row or none.
type register struct {
	isThere bool
	value   string
}

func step(state, input, _ interface{}) (bool, interface{}) {
	now, op := state.(register), input.(operation)
	written := register{true, op.Value}
	isUnknown := op.Outcome == "unknown"
	isMet := op.Outcome == "ok"
	mayBe := isUnknown || op.Existed == nil || *op.Existed == now.isThere
	switch op.Kind {
	case "get":
		found := register{}
		if op.Found != nil {
			found = register{true, *op.Found}
		}
		return now == found, now
	case "put":
		return mayBe, written
	case "delete":
		return mayBe, register{}
	case "swap", "create":
		holds := !now.isThere
		if op.Kind == "swap" {
			holds = now == register{true, op.Expected}
		}
		if holds {
			return isMet || isUnknown, written
		}
		return !isMet || isUnknown, now
	}
	panic("no kind of operation: " + op.Kind)
}

var model = porcupine.Model{
	Init: func() interface{} { return register{} },
	Step: step,
	DescribeOperation: func(input, _ interface{}) string {
		op := input.(operation)
		found := ""
		if op.Found != nil {
			found = *op.Found
		}
		return fmt.Sprintf("%s %s %s %s: %s %s", op.Kind, op.Key, op.Expected, op.Value, op.Outcome, found)
	},
}

// The operations of each key that took effect, or may have.
func read(file string) (map[string][]porcupine.Operation, int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, 0, err
	}
	var all []operation
	var last int64
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		var op operation
		form := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		form.DisallowUnknownFields()
		if err := form.Decode(&op); err != nil {
			return nil, 0, fmt.Errorf("line %d: %w", len(all)+1, err)
		}
		switch op.Outcome {
		case "ok", "not_met", "refused", "unknown":
		default:
			return nil, 0, fmt.Errorf("line %d: no outcome: %q", len(all)+1, op.Outcome)
		}
		all = append(all, op)
		last = max(last, op.End)
	}
	if err := lines.Err(); err != nil {
		return nil, 0, err
	}
	keys := map[string][]porcupine.Operation{}
	count := 0
	for _, op := range all {
		if op.Outcome == "refused" || op.Outcome == "unknown" && op.Kind == "get" {
			continue
		}
		end := op.End
		if op.Outcome == "unknown" {
			end = last + 1
		}
		keys[op.Key] = append(keys[op.Key], porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Start, Return: end})
		count++
	}
	return keys, count, nil
}

// Gives the code to end with.
func check(file string) int {
	keys, count, err := read(file)
	if err != nil {
		fmt.Printf("%s: %v\n", file, err)
		return 2
	}
	code := 0
	for key, history := range keys {
		result, info := porcupine.CheckOperationsVerbose(model, history, patience)
		switch result {
		case porcupine.Illegal:
			picture := fmt.Sprintf("%s.%s.html", file, key)
			fmt.Printf("%s: key %s is not linearizable: %s\n", file, key, picture)
			if err := porcupine.VisualizePath(model, info, picture); err != nil {
				fmt.Printf("%s: %v\n", picture, err)
			}
			code = max(code, 1)
		case porcupine.Unknown:
			fmt.Printf("%s: key %s is not judged after %v\n", file, key, patience)
			code = max(code, 2)
		}
	}
	if code == 0 {
		fmt.Printf("%s: linearizable: %d operations of %d keys\n", file, count, len(keys))
	}
	return code
}

func main() {
	code := 0
	for _, file := range os.Args[1:] {
		code = max(code, check(file))
	}
	if len(os.Args) < 2 {
		fmt.Println("usage: porcupine FILE...")
		code = 2
	}
	os.Exit(code)
}
