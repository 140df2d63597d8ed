package engine

import (
	"fmt"
	"slices"
	"strings"

	"klbr/internal/klbr"
)

// PersonCells is the admission source of persons' cells.
const PersonCells = "cell"

// maxLostNames bounds the receipt of a lost heap.
const maxLostNames = 200

func personCellDigest(lane, code string) string {
	return klbr.Digest([]byte(lane), []byte{0}, []byte(code))
}

func cellCall(turn int64, key string, cell int64) CallID {
	if key == "" {
		return CallID{0, fmt.Sprintf("cell:%d", cell)}
	}
	return CallID{turn, key}
}

func (st *step) cellRun(ev CellRun) {
	t := st.caller(ev.Caller)
	if t == nil {
		return
	}
	if done, _ := st.known(ev.Caller, klbr.CallCell); done {
		return
	}
	st.enqueue(cellRequest{
		id: CallID{ev.Turn, ev.Key}, lane: t.Lane, reply: []ReplyTo{ev.Reply},
		cell: klbr.CellStarted{Key: ev.Key, Args: ev.Args, Code: ev.Code, TimeoutMS: ev.TimeoutMS, By: "model"},
	})
}

func (st *step) personCell(ev PersonCell) {
	digest := personCellDigest(ev.Lane, ev.Code)
	if d := ev.Dup; d != nil {
		if d.Digest != digest {
			err := klbr.Errorf(klbr.CodeIDReused, "cell id %q was used before for other code", ev.ID).WithHint("run it with a new id")
			err.Seq = d.Seq
			st.fail(ev.Reply, err)
			return
		}
		if ev.Reply != 0 {
			st.act(ReplyRecorded{To: ev.Reply, Opened: d.Seq, Seq: d.Seq})
		}
		return
	}
	err := st.closed()
	if st.Session.State == klbr.SessionHeld {
		err = klbr.Errorf(klbr.CodeSessionStopped, "session %s is stopped", st.Session.Session).WithHint("klbr resume " + st.Session.Session)
	}
	if err == nil && st.Lanes[ev.Lane] == nil {
		err = noLane(ev.Lane, st.Session.Session)
	}
	if err != nil {
		st.fail(ev.Reply, err)
		return
	}
	for i := range st.live.queue {
		q := &st.live.queue[i]
		if ev.ID == "" || q.cell.SourceID != ev.ID {
			continue
		}
		if personCellDigest(q.lane, q.cell.Code) != digest {
			st.fail(ev.Reply, klbr.Errorf(klbr.CodeIDReused, "cell id %q was used before for other code", ev.ID).WithHint("run it with a new id"))
			return
		}
		q.reply = append(q.reply, ev.Reply)
		return
	}
	st.enqueue(cellRequest{
		lane: ev.Lane, reply: []ReplyTo{ev.Reply},
		cell: klbr.CellStarted{Code: ev.Code, By: "person", Private: ev.Private, SourceID: ev.ID},
	})
}

// enqueue runs the cell now where the kernel is free, else when its turn comes.
func (st *step) enqueue(q cellRequest) {
	st.live.queue = append(st.live.queue, q)
	st.nextCell()
}

func (st *step) nextCell() {
	if len(st.live.queue) == 0 || st.OpenCell() != nil {
		return
	}
	q := st.live.queue[0]
	st.live.queue = slices.Delete(slices.Clone(st.live.queue), 0, 1)
	if st.Session.Kernel == 0 {
		st.emitReset("first")
	}
	b := q.cell
	b.Cell, b.Generation = st.Session.Cells+1, st.Session.Kernel
	seq := st.emit(q.lane, q.id.Turn, &b)
	st.act(RunCell{
		Cell: b.Cell, Started: seq, Turn: q.id.Turn, Lane: q.lane,
		Generation: b.Generation, Code: b.Code, TimeoutMS: b.TimeoutMS,
	})
	if q.id.Turn == 0 { // a person is answered when the cell has begun
		for _, to := range q.reply {
			st.reply(to, CellAccepted{Cell: b.Cell, Seq: seq})
		}
		return
	}
	for _, to := range q.reply {
		st.wait(q.id, to)
	}
}

// dropQueue forgets waiting cells and tells their callers. It says whether
// there were any.
func (st *step) dropQueue(which func(cellRequest) bool, code klbr.Code) bool {
	var keep []cellRequest
	for _, q := range st.live.queue {
		if !which(q) {
			keep = append(keep, q)
			continue
		}
		for _, to := range q.reply {
			st.fail(to, klbr.Errorf(code, "the cell was given up before it began"))
		}
	}
	dropped := len(keep) != len(st.live.queue)
	st.live.queue = keep
	return dropped
}

func (st *step) interrupt(c *klbr.CallRow, reason string) {
	if st.live.stopping == c.Number {
		return
	}
	st.live.stopping = c.Number
	st.act(InterruptCell{Cell: c.Number, Generation: c.Generation, Reason: reason})
}

// emitReset begins the next generation and gives what the one before lost.
func (st *step) emitReset(reason string) klbr.KernelLoss {
	loss := klbr.KernelLoss{Generation: st.Session.Kernel + 1}
	names := sorted(st.Names)
	if len(names) > maxLostNames {
		loss.More, names = len(names)-maxLostNames, names[:maxLostNames]
	}
	for _, n := range names {
		loss.Names = append(loss.Names, klbr.LostName{Name: n, Cell: st.Names[n]})
	}
	st.emit("", 0, &klbr.KernelReset{Reason: reason, Text: lossText(loss), SkillsRevision: st.live.skills, Loss: loss})
	return loss
}

func lossText(l klbr.KernelLoss) string {
	if l.Generation == 1 {
		return "Kernel 1 is new: its heap is empty."
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Kernel %d is new: Python heap state was not restored.", l.Generation)
	if len(l.Names) == 0 {
		b.WriteString(" No names were lost.")
		return b.String()
	}
	b.WriteString(" Lost: ")
	for i, n := range l.Names {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s (cell %d)", n.Name, n.Cell)
	}
	if l.More > 0 {
		fmt.Fprintf(&b, " and %d more", l.More)
	}
	b.WriteString(". Files are as they were.")
	return b.String()
}

// newGeneration gives up the current generation: the cell that runs in it is
// settled as lost, or as partial says.
func (st *step) newGeneration(reason string, partial *klbr.CellFinished) klbr.KernelLoss {
	c := st.OpenCell()
	loss := st.emitReset(reason)
	st.live.stopping = 0
	if c != nil {
		f := klbr.CellFinished{Status: klbr.CellLost}
		if partial != nil && partial.Cell == c.Number {
			f = *partial
		}
		key := c.Key
		if c.Turn == 0 {
			key = ""
		}
		f.Key, f.Cell, f.Generation, f.Lost = key, c.Number, c.Generation, &loss
		f.Bound, f.Freed = nil, nil
		id, opened := CallID{c.Turn, c.Key}, c.Opened
		seq := st.emit(c.Lane, c.Turn, &f)
		st.answerWaiters(id, opened, seq)
	}
	st.nextCell()
	return loss
}

func (st *step) kernelUp(ev KernelUp) {
	if ev.Generation == st.Session.Kernel {
		st.emit("", 0, &klbr.KernelStarted{Generation: ev.Generation, Life: st.live.life, PID: ev.PID, Python: ev.Python})
	}
}

func (st *step) kernelDown(ev KernelDown) {
	if ev.Generation != st.Session.Kernel {
		return
	}
	st.newGeneration(ev.Reason, ev.Partial)
}

func (st *step) cellOutput(ev CellOutput) {
	c := st.OpenCell()
	if c == nil || c.Number != ev.Output.Cell || c.Generation != ev.Generation {
		return
	}
	st.emit(c.Lane, c.Turn, &ev.Output)
}

func (st *step) cellDone(ev CellDone) {
	f := ev.Finished
	c := st.OpenCell()
	if c == nil || c.Number != f.Cell || c.Generation != f.Generation {
		if f.Cell > 0 && f.Cell <= st.Session.Cells {
			f.Late, f.Key = true, ""
			st.emit("", 0, &f)
		}
		return
	}
	st.live.stopping = 0
	id, opened := CallID{c.Turn, c.Key}, c.Opened
	if c.Turn != 0 {
		f.Key = c.Key
	}
	seq := st.emit(c.Lane, c.Turn, &f)
	st.answerWaiters(id, opened, seq)
	st.nextCell()
}

func (st *step) operatorReset(ev KernelReset) {
	old := st.Session.Kernel
	if old == 0 {
		loss := st.emitReset("first")
		st.reply(ev.Reply, HeapReset{Generation: loss.Generation, Text: lossText(loss)})
		return
	}
	st.act(EndKernel{Generation: old})
	loss := st.newGeneration("operator", nil)
	st.reply(ev.Reply, HeapReset{Generation: loss.Generation, Text: lossText(loss)})
}
